/*
 * man_text: what of the manual page no table says. Everything else in it is made by man.c.
 */
#ifndef DPT_CMD_MAN_TEXT_H
#define DPT_CMD_MAN_TEXT_H

/* A paragraph; with a head, what the head is about. */
struct dpt_man_item {
    const char *head, *text;
};

/* The date at the foot of the page: of the last change of the texts. */
#define DPT_MAN_DATE "2026-11-21"

/* Each ends with a row without a text. `words` in backquotes are set in bold. */
extern const struct dpt_man_item dpt_man_description[], dpt_man_job[], dpt_man_exit[],
    dpt_man_environment[], dpt_man_files[], dpt_man_see[];
/* Head: what it does; text: the command. */
extern const struct dpt_man_item dpt_man_examples[];

#endif
