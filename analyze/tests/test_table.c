/* Text tables: what is written is read back; what is no table is refused with its line. */
#include "analyze/table.h"

#include "runtime/tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *path;

/* A file of the test's own folder holding `bytes` of `text`. */
static void write_file(const char *text, size_t bytes) {
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, bytes, out), bytes);
    assert_int_equal(fclose(out), 0);
}

static table *read_back(void) {
    table *t;
    status st;
    if (table_read(path, &t, &st))
        fail_msg("%s", st.text);
    return t;
}

static void refuses(const char *text, size_t bytes, const char *line, const char *reason) {
    write_file(text, bytes);
    table *t;
    status st = {""};
    assert_int_equal(table_read(path, &t, &st), FAILED);
    assert_null(t);
    char place[600];
    snprintf(place, sizeof place, "%s:%s: ", path, line);
    if (strncmp(st.text, place, strlen(place)) != 0 || !strstr(st.text, reason))
        fail_msg("'%s' should begin with '%s' and say '%s'", st.text, place, reason);
}

static void test_round_trip(void **state) {
    (void)state;
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    table_head(out, "fathom routing 'my\nfile.h5'", "abc", "");
    table_comment(out, "unit of uncertainty: the sequence (%d)", 8);
    table_section(out, "ENT", "entropy", "site, head, value, low", "nats");
    table_section(out, "SIT", "sites", "site", "none");
    table_row(out, "ENT");
    table_text(out, "L0\t.mlp");
    table_size(out, 3);
    table_real(out, 1.0 / 3);
    table_real(out, -NAN);
    table_end(out);
    table_row(out, "SIT");
    table_text(out, "");
    table_end(out);
    assert_int_equal(fclose(out), 0);

    table *t = read_back();
    assert_string_equal(table_path(t), path);
    assert_string_equal(table_command(t), "fathom routing 'my file.h5'");
    assert_int_equal(table_sections(t), 2);
    assert_ptr_equal(table_section_at(t, 0), table_find(t, "ENT"));
    assert_null(table_find(t, "EN"));
    const table_section_view *ent = table_find(t, "ENT");
    assert_string_equal(ent->title, "entropy");
    assert_string_equal(ent->units, "nats");
    assert_int_equal(ent->rows, 1);
    assert_int_equal(ent->columns, 4);
    assert_int_equal(table_column(ent, "low"), 3);
    assert_int_equal(table_column(ent, "high"), -1);
    assert_string_equal(table_cell(ent, 0, 0), "L0 .mlp");
    assert_true(isnan(table_number(ent, 0, 0)));
    assert_true(table_number(ent, 0, 1) == 3);
    assert_true(fabs(table_number(ent, 0, 2) - 1.0 / 3) < 1e-9);
    assert_string_equal(table_cell(ent, 0, 3), "nan");
    assert_true(isnan(table_number(ent, 0, 3)));
    const table_section_view *sit = table_find(t, "SIT");
    assert_int_equal(sit->rows, 1);
    assert_string_equal(table_cell(sit, 0, 0), "");
    assert_true(isnan(table_number(sit, 0, 0)));
    table_free(t);
}

static void test_comments_are_no_sections(void **state) {
    (void)state;
    static const char text[] = "# fathom 0.1.0\n"
                               "# command a\n"
                               "# command b\n"
                               "# HDV  has no null shown\n"
                               "# note; columns: site; units: 1\n"
                               "#\n"
                               "\n"
                               "# AB1  t; columns: site; units: nats; columns: x\r\n"
                               "AB1\tL0\r\n"
                               "AB1\tL1"; /* no final newline */
    write_file(text, sizeof text - 1);
    table *t = read_back();
    assert_string_equal(table_command(t), "a");
    assert_int_equal(table_sections(t), 1);
    const table_section_view *s = table_section_at(t, 0);
    assert_string_equal(s->code, "AB1");
    assert_int_equal(s->rows, 2);
    assert_string_equal(table_cell(s, 0, 0), "L0");
    assert_string_equal(table_cell(s, 1, 0), "L1");
    table_free(t);
}

static void test_many_rows(void **state) {
    (void)state;
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    table_head(out, "", "", "");
    table_section(out, "N", "numbers", "index, square", "1");
    for (size_t i = 0; i < 20000; i++) {
        table_row(out, "N");
        table_size(out, i);
        table_real(out, (double)(i * i));
        table_end(out);
    }
    assert_int_equal(fclose(out), 0);
    table *t = read_back();
    const table_section_view *s = table_find(t, "N");
    assert_int_equal(s->rows, 20000);
    assert_true(table_number(s, 19999, 0) == 19999);
    assert_true(table_number(s, 19999, 1) == 19999.0 * 19999);
    table_free(t);
}

#define HEAD "# fathom 0.1.0\n"
#define REFUSES(text, line, reason) refuses(text, sizeof(text) - 1, line, reason)

static void test_malformed(void **state) {
    (void)state;
    REFUSES("", "1", "no table");
    REFUSES("\x89HDF\r\n\x1a\n", "1", "no table");
    REFUSES("ENT\t1\n", "1", "no table");
    REFUSES(HEAD "ENT\t1\n", "2", "row of a section 'ENT'");
    REFUSES(HEAD "# ENT  e; columns: a, b; units: 1\nENT\t1\n", "3", "1 cells, expected 2");
    REFUSES(HEAD "# ENT  e; columns: a, b; units: 1\nENT\t1\t2\nENT\t1\t2\t3\n", "4",
            "3 cells, expected 2");
    REFUSES(HEAD "# ENT  e; columns: a; units: 1\nENT\n", "3", "0 cells, expected 1");
    REFUSES(HEAD "# ENT  e; columns: a; units: 1\n# ENT  e; columns: a; units: 1\n", "3",
            "begins a second time");
    REFUSES(HEAD "# ENT  e; columns: a, a; units: 1\n", "2", "two columns are named a");
    REFUSES(HEAD "# ENT  e; columns: a, ; units: 1\n", "2", "a column without a name");
    REFUSES(HEAD "# ENT  e; columns: a; units: 1\nENT\t1\0002\n", "3", "zero byte");
}

static void test_missing_file(void **state) {
    (void)state;
    table *t;
    status st;
    assert_int_equal(table_read("build/no/such/table", &t, &st), FAILED);
    assert_non_null(strstr(st.text, "build/no/such/table: No such file"));
    assert_int_equal(table_read("analyze", &t, &st), FAILED); /* a folder */
    assert_non_null(strstr(st.text, "analyze: "));
}

int main(void) {
    path = scratch_path("table.txt");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),   cmocka_unit_test(test_comments_are_no_sections),
        cmocka_unit_test(test_many_rows),    cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_missing_file),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(path);
    return failed;
}
