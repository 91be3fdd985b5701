/*
 * page: what a page of dptrain's begins and ends with: that of `report`, and of `bench --find-lr`.
 *
 * A page is one file that needs nothing beside it. What stands in it is chart.h's.
 */
#ifndef DPT_CMD_REPORT_PAGE_H
#define DPT_CMD_REPORT_PAGE_H

#include "core/base/error.h"
#include "core/base/str.h"

/* Whether a page may be written there: a mistyped name must not replace another file. Errors: USAGE
 * (no name of a page; a file that is none), IO. */
enum dpt_status dpt_page_check_output(const char *path, struct dpt_error *err);

/* Add what comes before the title, between the title and the content, and after the content; the
 * caller writes title and content. command: the one that makes the page. Check out->failed. */
void dpt_page_begin(struct dpt_str *out, const char *command);
void dpt_page_body(struct dpt_str *out, const char *command);
void dpt_page_end(struct dpt_str *out);

/* The style sheet and the script (style.c). */
extern const char dpt_page_style[], dpt_page_script[];

#endif
