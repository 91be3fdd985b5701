/*
 * html: text as HTML wants it. Private to `dptrain report`.
 */
#ifndef DPT_CMD_REPORT_HTML_H
#define DPT_CMD_REPORT_HTML_H

#include "core/base/str.h"

enum { DPT_HTML_NUMBER = 48 };

/* Adds a text that may hold anything, as text or as a value in double quotes: markup is escaped,
 * controls and what is no UTF-8 become U+FFFD (tabs and newlines stay). */
void dpt_html_text(struct dpt_str *out, const char *text);

/* For a person, into buf (DPT_HTML_NUMBER bytes); returns buf. NAN is a dash. */
const char *dpt_html_number(char *buf, double value, int digits); /* significant ones */
const char *dpt_html_percent(char *buf, double fraction);         /* "98.94 %" */
const char *dpt_html_count(char *buf, double value);              /* "1 234 567" */
const char *dpt_html_seconds(char *buf, double seconds); /* "44.1 s", "12:05 min", "3:02:10 h" */

#endif
