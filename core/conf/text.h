/*
 * text: characters, as the rest of core/conf needs them. Private to this room.
 *
 * Everything that a person wrote may hold anything; what goes to a terminal may not.
 */
#ifndef DPT_CONF_TEXT_H
#define DPT_CONF_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/conf/yaml.h"

/* Decodes one character of n > 0 bytes of UTF-8. *length: its bytes. -1 (length 1) where they are
 * no UTF-8 (RFC 3629). */
int32_t dpt_utf8_decode(const char *bytes, size_t n, size_t *length);

/* Whether a character may stand in a YAML stream as it is (YAML 1.1, c-printable). */
bool dpt_yaml_character(int32_t c);

/* Whether a character can be shown on a terminal, in one line: no controls, line separators or
 * direction marks. */
bool dpt_shown_character(int32_t c);

/*
 * Copies text into out (at least 6 x limit + 8 bytes) with what cannot be shown escaped, as the C
 * language does; behind `limit` characters it is cut and an ellipsis put. A backslash stays as it
 * is, so that showing twice changes nothing.
 */
void dpt_show_text(char *out, const char *text, size_t limit);

/* Checks that bytes are UTF-8 text that a YAML stream may hold. False: a mistake was added.
 * `origin`: as in a node. */
bool dpt_check_text(struct dpt_conf *conf, const char *bytes, size_t n, const char *origin);

#endif
