/* Text and numbers as HTML wants them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/report/chart.h"

void dpt_html_text(struct dpt_str *out, const char *text)
{
    static const char marks[] = "&<>\"'";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    size_t left = strlen(text), n;

    for (; left > 0; text += n, left -= n) {
        const char *mark = strchr(marks, *text);
        const int32_t c = dpt_utf8_decode(text, left, &n);

        if (mark != NULL)
            dpt_str_printf(out, "%s", names[mark - marks]);
        else if (c == '\n' || c == '\t' || (c >= 0 && dpt_shown_character(c)))
            dpt_str_add(out, text, n);
        else
            dpt_str_printf(out, "\xEF\xBF\xBD");
    }
}

void dpt_html_element(struct dpt_str *out, const char *before, const char *text, const char *after)
{
    dpt_str_printf(out, "%s", before);
    dpt_html_text(out, text);
    dpt_str_printf(out, "%s", after);
}

const char *dpt_html_number(char *buf, double value, int digits)
{
    char *exponent;

    if (isnan(value))
        snprintf(buf, DPT_HTML_NUMBER, "–");
    else
        snprintf(buf, DPT_HTML_NUMBER, "%.*g", digits, value);
    exponent = strchr(buf, 'e'); /* 1e-05 -> 1e-5 */
    if (exponent != NULL && exponent[2] == '0' && exponent[3] != '\0')
        memmove(exponent + 2, exponent + 3, strlen(exponent + 3) + 1);
    return buf;
}

const char *dpt_html_percent(char *buf, double fraction)
{
    if (!(fabs(fraction) < 1e6))
        return dpt_html_number(buf, fraction, 3);
    snprintf(buf, DPT_HTML_NUMBER, "%.2f\u00a0%%", 100 * fraction);
    return buf;
}

const char *dpt_html_count(char *buf, double value)
{
    if (!(fabs(value) < 1e18))
        return dpt_html_number(buf, value, 3);
    return dpt_group_digits(buf, llround(value));
}

const char *dpt_html_seconds(char *buf, double seconds)
{
    char clock[32];

    if (!isfinite(seconds))
        return dpt_html_number(buf, NAN, 1);
    if (seconds < 100)
        snprintf(buf, DPT_HTML_NUMBER, "%.3g\u00a0s", seconds);
    else
        snprintf(buf, DPT_HTML_NUMBER, "%s%s", dpt_show_clock(seconds, clock),
                 seconds < 3599.5    ? "\u00a0min"
                 : seconds < 86399.5 ? "\u00a0h"
                                     : "");
    return buf;
}
