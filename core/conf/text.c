#include "core/conf/internal.h"

#include <string.h>

enum { SHOWN = 60 };

/* Whether a character may stand in a YAML stream as it is (YAML 1.1, c-printable). */
static bool may_stand(int32_t c)
{
    return c == '\t' || c == '\n' || c == '\r' || (c >= 0x20 && c <= 0x7E) || c == 0x85 ||
           (c >= 0xA0 && c <= 0xD7FF) || (c >= 0xE000 && c <= 0xFFFD && c != 0xFEFF) ||
           c >= 0x10000;
}

const char *dpt_conf_show(struct dpt_conf *conf, const char *text)
{
    char shown[6 * SHOWN + 8];
    const char *copy;

    dpt_show_text(shown, text, SHOWN);
    copy = dpt_region_strdup(&conf->region, shown);
    return copy == NULL ? "?" : copy;
}

/* A control character or a NUL anywhere: nobody wrote this with an editor. */
static bool looks_binary(const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];

        if (c == 0x7F || (c < 0x20 && c != '\t' && c != '\n' && c != '\r' && c != '\f'))
            return true;
    }
    return false;
}

bool dpt_check_text(struct dpt_conf *conf, const char *bytes, size_t n, const char *origin)
{
    struct dpt_conf_node at = {.line = 1, .column = 1};
    const struct dpt_conf_node whole = {.origin = origin};
    size_t length;

    if (n >= 2 && (memcmp(bytes, "\xFF\xFE", 2) == 0 || memcmp(bytes, "\xFE\xFF", 2) == 0)) {
        dpt_conf_mistake(conf, &whole, NULL, "UTF-16 text; save it as UTF-8");
        return false;
    }
    for (size_t i = 0; i < n; i += length) {
        const unsigned char byte = (unsigned char)bytes[i];
        const int32_t c = dpt_utf8_decode(bytes + i, n - i, &length);

        if (!may_stand(c)) {
            if (origin != NULL)
                at = whole;
            if (looks_binary(bytes, n))
                dpt_conf_mistake(conf, &whole, NULL, "not a text file (byte 0x%02x at offset %zu)",
                                 byte, i);
            else if (c < 0)
                dpt_conf_mistake(conf, &at, NULL,
                                 "byte 0x%02x is not UTF-8; save the text as UTF-8", byte);
            else
                dpt_conf_mistake(conf, &at, NULL, "character U+%04X is not allowed here",
                                 (unsigned)c);
            return false;
        }
        if (c == '\n' || (c == '\r' && (i + 1 == n || bytes[i + 1] != '\n'))) {
            at.line++;
            at.column = 1;
        } else if (c != '\r') {
            at.column++;
        }
    }
    return true;
}
