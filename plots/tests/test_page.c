/* Pages: text is escaped whatever it holds, and an image stands in the page byte by byte. */
#include "plots/page.h"
#include "runtime/base/log.h"
#include "runtime/tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef void put_text(FILE *out, const char *text);

/* To be freed. */
static char *written(put_text *put, const char *text) {
    char *html = NULL;
    size_t bytes;
    FILE *out = open_memstream(&html, &bytes);
    assert_non_null(out);
    put(out, text);
    assert_int_equal(fclose(out), 0);
    return html;
}

static void check_text(put_text *put, const char *text, const char *expected) {
    char *html = written(put, text);
    assert_string_equal(html, expected);
    free(html);
}

static void text_is_escaped(void **state) {
    (void)state;
    check_text(html_text, "a<b> & \"c\" 'd'", "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
    check_text(html_text, "\xc3\xa9\xe6\xa8\xa1", "\xc3\xa9\xe6\xa8\xa1");
    check_text(html_text, "x\xff\n\x01y\xc3", "x???y?");
    check_text(html_text, "", "");
    check_text(html_lines, "a\n<\n", "a\n&lt;\n");
    check_text(html_command, "plot '<a b'",
               "<span class=\"word\">plot</span> <span class=\"word\">&#39;&lt;a</span> "
               "<span class=\"word\">b&#39;</span>");
}

/* A character is not cut in two, wherever it stands in a long text. */
static void long_text_is_whole(void **state) {
    (void)state;
    for (size_t shift = 0; shift < 4; shift++) {
        char text[4000] = "abc";
        text[shift] = 0; /* 0 to 3 bytes before the first of three bytes each */
        while (strlen(text) + 4 < sizeof text)
            strcat(text, "\xe6\xa8\xa1");
        check_text(html_text, text, text);
    }
}

static int value_of(char digit) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    return (int)(strchr(digits, digit) - digits);
}

static size_t decode(const char *text, unsigned char *out) {
    size_t count = 0;
    for (; text[0] != '"'; text += 4) {
        int a = value_of(text[0]), b = value_of(text[1]);
        out[count++] = (unsigned char)(a << 2 | b >> 4);
        if (text[2] == '=')
            continue;
        int c = value_of(text[2]);
        out[count++] = (unsigned char)((b & 15) << 4 | c >> 2);
        if (text[3] != '=')
            out[count++] = (unsigned char)((c & 3) << 6 | value_of(text[3]));
    }
    return count;
}

static void image_is_whole(void **state) {
    (void)state;
    for (size_t more = 0; more < 4; more++) {
        unsigned char svg[600] = "<?xml version=\"1.0\"?><svg width=\"340\" height=\"120\">",
                      back[700];
        size_t length = strlen((char *)svg);
        for (size_t i = 0; i < 256 + more; i++)
            svg[length++] = (unsigned char)(i * 7 + 1);
        char *path = scratch_path("image.svg"), *html = NULL;
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fwrite(svg, 1, length, file);
        assert_int_equal(fclose(file), 0);
        size_t bytes;
        FILE *out = open_memstream(&html, &bytes);
        status st;
        assert_int_equal(html_svg(out, path, "a \"figure\"", &st), DONE);
        fclose(out);
        const char head[] = "<img alt=\"a &quot;figure&quot;\" width=\"340\" height=\"120\" "
                            "src=\"data:image/svg+xml;base64,";
        assert_memory_equal(html, head, sizeof head - 1);
        assert_int_equal(decode(html + sizeof head - 1, back), length);
        assert_memory_equal(back, svg, length);
        free(html);
        free(path);
    }
}

static void missing_image_is_named(void **state) {
    (void)state;
    status st;
    assert_int_equal(html_svg(stderr, "/nonexistent/x.svg", "x", &st), FAILED);
    assert_non_null(strstr(st.text, "/nonexistent/x.svg"));
}

static void keep(void *context, log_kind kind, const char *text) {
    char *all = context;
    sprintf(all + strlen(all), "%d %s;", (int)kind, text);
}

/* What report relies on to show what other commands say. */
static void messages_can_be_watched(void **state) {
    (void)state;
    char all[200] = "";
    log_watch(keep, all);
    log_error("one %d", 1);
    log_warn("two");
    log_note("three");
    log_detail("four");
    log_watch(NULL, NULL);
    assert_string_equal(all, "0 one 1;1 two;2 three;3 four;");
    scratch_capture_begin();
    log_error("five");
    char *said = scratch_capture_end();
    assert_string_equal(said, "fathom: five\n");
    assert_string_equal(all, "0 one 1;1 two;2 three;3 four;");
    free(said);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_escaped),         cmocka_unit_test(long_text_is_whole),
        cmocka_unit_test(image_is_whole),          cmocka_unit_test(missing_image_is_named),
        cmocka_unit_test(messages_can_be_watched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
