#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/launcher_text.h"

#define EQUALS                                                                                     \
    "===================================================================================\n"
#define DASHES "--------------------------------------------------------------------------\n"

/* As MPICH 4.0 and Intel MPI print them. */
static const char hydra[] =
    "\n" EQUALS "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    "=   PID 31309 RUNNING AT vm\n=   EXIT CODE: 9\n=   CLEANING UP REMAINING PROCESSES\n"
    "=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n" EQUALS
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
    "This typically refers to a problem with your application.\n"
    "Please see the FAQ page for debugging suggestions\n";
static const char intel[] = "\n" EQUALS "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
                            "=   RANK 1 PID 1078176 RUNNING AT vm\n"
                            "=   KILLED BY SIGNAL: 9 (Killed)\n" EQUALS;
/* As Open MPI 5.0 prints them; the last byte of the second one is a 0. */
static const char prterun[] =
    DASHES "prterun detected that one or more processes exited with non-zero status,\n"
           "thus causing the job to be terminated. The first process to do so was:\n\n"
           "   Process name: [prterun-vm-4852@1,0]\n   Exit code:    78\n" DASHES;
static const char aborted[] =
    DASHES "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\n"
           "  Proc: [[31992,1],0]\n  Errorcode: 71\n\n"
           "NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n" DASHES "\0";

struct text {
    char bytes[8192];
    size_t n;
};

static void add(struct text *text, const char *bytes, size_t n)
{
    assert_true(text->n + n <= sizeof text->bytes);
    memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
}

#define ADD(text, s) add(text, s, sizeof(s) - 1)

/* Whatever the pieces are in which the bytes come. */
static void check(const struct text *in, const struct text *want)
{
    for (unsigned seed = 0; seed < 300; seed++) {
        static char out[sizeof in->bytes + DPT_LAUNCHER_TEXT_HELD];
        struct dpt_launcher_text t = {0};
        size_t n = 0;

        srand(seed);
        for (size_t at = 0, piece; at < in->n; at += piece) {
            piece = 1 + (size_t)rand() % (seed % 3 == 0 ? 3 : seed % 3 == 1 ? 100 : 5000);
            piece = piece < in->n - at ? piece : in->n - at;
            n += dpt_launcher_text(&t, in->bytes + at, piece, out + n);
        }
        n += dpt_launcher_text_end(&t, out + n);
        assert_int_equal(n, want->n);
        assert_memory_equal(out, want->bytes, n);
    }
}

static void only_the_launchers_texts_go(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } texts[] = {{hydra, sizeof hydra - 1},
                 {intel, sizeof intel - 1},
                 {prterun, sizeof prterun - 1},
                 {aborted, sizeof aborted - 1}};

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct text in = {0}, want = {0};

        ADD(&in, "job.yaml:1:1: x: unknown key\n");
        add(&in, texts[i].bytes, texts[i].n);
        ADD(&in, "rank 1 (vm) died\n");
        add(&in, texts[i].bytes, texts[i].n);
        ADD(&want, "job.yaml:1:1: x: unknown key\nrank 1 (vm) died\n");
        check(&in, &want);
    }
}

/* Rules, empty lines, long lines, bytes of any value, an end without a line break. */
static void all_else_stays(void **state)
{
    struct text same = {0};

    (void)state;
    ADD(&same, "\n\n" EQUALS EQUALS "\n" DASHES "a table\n" DASHES "\n=\n==\n");
    ADD(&same, "epoch 1\r\033[Kepoch 2\nprterun detected that it is alone\n" EQUALS "= 1\n");
    for (int i = 0; i < 3000; i++)
        add(&same, &(char){(char)(i % 7 == 0 ? '=' : i)}, 1);
    ADD(&same, "\n" DASHES "MPI_ABORT");
    check(&same, &same);
}

static void a_rule_of_the_program_before_one_of_the_launcher_stays(void **state)
{
    struct text in = {0}, want = {0};

    (void)state;
    ADD(&in, DASHES);
    ADD(&in, prterun);
    ADD(&want, DASHES);
    check(&in, &want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_launchers_texts_go),
        cmocka_unit_test(all_else_stays),
        cmocka_unit_test(a_rule_of_the_program_before_one_of_the_launcher_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
