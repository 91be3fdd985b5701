#include "cmd/report/html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the well-formed character of UTF-8 at p, 0: there is none. */
static size_t character(const unsigned char *p)
{
    static const struct {
        unsigned char first, last, low, high, length;
    } forms[] = {
        {0x20, 0x7E, 0x00, 0xFF, 1}, {0xC2, 0xC2, 0xA0, 0xBF, 2}, {0xC3, 0xDF, 0x80, 0xBF, 2},
        {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3},
        {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4},
        {0xF4, 0xF4, 0x80, 0x8F, 4},
    };

    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (*p < forms[i].first || *p > forms[i].last)
            continue;
        if (forms[i].length > 1 && (p[1] < forms[i].low || p[1] > forms[i].high))
            return 0;
        for (size_t k = 2; k < forms[i].length; k++)
            if (p[k] < 0x80 || p[k] > 0xBF)
                return 0;
        return forms[i].length;
    }
    return *p == '\n' || *p == '\t' ? 1 : 0;
}

void dpt_html_text(struct dpt_str *out, const char *text)
{
    static const char marks[] = "&<>\"'";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};

    for (const unsigned char *p = (const unsigned char *)text; *p != '\0';) {
        const char *mark = strchr(marks, *p);
        const size_t n = character(p);

        if (mark != NULL)
            dpt_str_printf(out, "%s", names[mark - marks]);
        else if (n == 0)
            dpt_str_printf(out, "\xEF\xBF\xBD");
        else
            dpt_str_add(out, (const char *)p, n);
        p += n == 0 ? 1 : n;
    }
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
    const long long s = isfinite(seconds) && seconds < 1e15 ? (long long)(seconds + 0.5) : 0;

    if (!isfinite(seconds))
        return dpt_html_number(buf, NAN, 1);
    if (seconds < 100)
        snprintf(buf, DPT_HTML_NUMBER, "%.3g\u00a0s", seconds);
    else if (s < 3600)
        snprintf(buf, DPT_HTML_NUMBER, "%lld:%02lld\u00a0min", s / 60, s % 60);
    else
        snprintf(buf, DPT_HTML_NUMBER, "%lld:%02lld:%02lld\u00a0h", s / 3600, s / 60 % 60, s % 60);
    return buf;
}
