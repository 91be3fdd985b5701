/*
 * text: characters, as the rest of core/conf needs them. Private to this room.
 *
 * What a terminal may show of them is base/str.h's business.
 */
#ifndef DPT_CONF_TEXT_H
#define DPT_CONF_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/str.h"
#include "core/conf/yaml.h"

/* Whether a character may stand in a YAML stream as it is (YAML 1.1, c-printable). */
bool dpt_yaml_character(int32_t c);

/* Checks that bytes are UTF-8 text that a YAML stream may hold. False: a mistake was added.
 * `origin`: as in a node. */
bool dpt_check_text(struct dpt_conf *conf, const char *bytes, size_t n, const char *origin);

#endif
