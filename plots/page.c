#include "plots/page.h"

#include "plots/sheet.h"
#include "runtime/base/json.h"
#include "runtime/base/version.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Figures are drawn on white and stay on a white card in the dark. */
static const char style[] =
    ":root{color-scheme:light dark;--page:#fbfbfa;--text:#1c1e21;--soft:#5b6067;--line:#dcdedf;"
    "--card:#f1f2f2;--link:#0b5c8f;--bad:#a3231b;--badpage:#fbeceb}\n"
    "@media (prefers-color-scheme:dark){:root{--page:#15171a;--text:#e3e5e7;--soft:#9aa1a9;"
    "--line:#33373c;--card:#1f2226;--link:#7cc0ee;--bad:#ff9c92;--badpage:#33201f}}\n"
    "*{box-sizing:border-box}\n"
    "html{-webkit-text-size-adjust:100%;text-size-adjust:100%;scroll-padding-top:3.5rem}\n"
    "body{margin:0 auto;max-width:104rem;padding:1.5rem clamp(1rem,3vw,2.5rem) 4rem;"
    "background:var(--page);color:var(--text);"
    "font:1rem/1.55 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',sans-serif;"
    "overflow-wrap:break-word}\n"
    "h1,h2,h3{line-height:1.2;text-wrap:balance}\n"
    "h1{font-size:1.9rem;letter-spacing:-.01em;margin:.5rem 0 .75rem}\n"
    "h2{font-size:1.4rem;margin:3.25rem 0 .75rem;padding-top:.75rem;"
    "border-top:2px solid var(--text)}\n"
    "h3{font-size:1.06rem;margin:2.25rem 0 .3rem}\n"
    "h3 code{font-size:.8rem;font-weight:400;color:var(--soft)}\n"
    "p,ul,dl{max-width:46rem;margin:.4rem 0}\n"
    "a{color:var(--link)}\n"
    "code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    "font-size:.82em}\n"
    "pre{margin:.5rem 0;padding:.75rem 1rem;background:var(--card);border-radius:6px;"
    "overflow-x:auto;line-height:1.45}\n"
    "pre.wrap{white-space:pre-wrap;overflow-wrap:anywhere}\n"
    "main>section:first-child h2{margin-top:1rem;border:0}\n"
    ".caveat,.absent,.soft{color:var(--soft)}\n"
    ".caveat::before{content:'Caveat: ';font-weight:600}\n"
    "nav ul{list-style:none;padding:0;margin:.25rem 0 0;max-width:none;columns:21rem 3;"
    "column-gap:2rem;font-size:.93rem}\n"
    "nav li{break-inside:avoid;padding:.06rem 0 .06rem 1rem;text-indent:-1rem}\n"
    "nav li.part{font-weight:600;margin-top:.5rem;break-after:avoid}"
    "nav li.part:first-child{margin-top:0}\n"
    "nav a{text-decoration:none}nav a:hover{text-decoration:underline}\n"
    ".view{position:fixed;top:0;left:0;opacity:0;pointer-events:none}\n"
    ".views{position:sticky;top:0;z-index:1;display:flex;gap:.35rem;overflow-x:auto;"
    "margin:1.25rem 0 0;padding:.5rem 0;background:var(--page);border-bottom:1px solid "
    "var(--line);font-size:.9rem}\n"
    ".views span{padding:.2rem .3rem .2rem 0;color:var(--soft);white-space:nowrap}\n"
    ".views label{padding:.2rem .7rem;border:1px solid var(--line);border-radius:1rem;"
    "white-space:nowrap;cursor:pointer}\n"
    ".table{overflow-x:auto;margin:.75rem 0}\n"
    "table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:.4rem .9rem .4rem 0;text-align:left;vertical-align:top;"
    "border-bottom:1px solid var(--line)}\n"
    "thead th{vertical-align:bottom;border-bottom:2px solid var(--line);min-width:8.5rem}\n"
    "tbody th{font-weight:400;min-width:9.5rem;max-width:17rem}\n"
    "tbody th,thead td{position:sticky;left:0;background:var(--page)}\n"
    "th small,td small{display:block;color:var(--soft);font-size:.84em;line-height:1.35}\n"
    ".row{display:grid;gap:1rem;align-items:start;margin:.75rem 0;"
    "grid-template-columns:repeat(auto-fill,minmax(min(100%,22rem),1fr))}"
    ".row:has(>:only-child){grid-template-columns:minmax(0,32rem)}\n"
    "@media (min-width:64rem){article:has(>.row>:only-child){display:grid;column-gap:2rem;"
    "grid-template:auto auto auto 1fr/minmax(0,1fr) minmax(0,32rem)}"
    "article:has(>.row>:only-child)>*{grid-column:1}"
    "article:has(>.row>:only-child)>.row{grid-column:2;grid-row:1/5;margin-top:2.25rem}}\n"
    "@media (min-width:56rem){.row:has(>:nth-child(2):last-child,>:nth-child(4):last-child){"
    "grid-template-columns:repeat(2,minmax(0,32rem))}}\n"
    "@media (min-width:96rem){.row:has(>:nth-child(4):last-child){"
    "grid-template-columns:repeat(4,1fr)}}\n"
    "figure{margin:0;padding:.6rem .75rem .7rem;background:var(--card);border-radius:8px;"
    "min-width:0;max-width:32rem}\n"
    "figure img{display:block;width:100%;height:auto;background:#fff;border-radius:4px;"
    "margin:.4rem 0}\n"
    "figcaption{font-weight:600;font-size:.93rem}\n"
    "figure code{display:block;font-size:.72rem;line-height:1.4;color:var(--soft);"
    "overflow-wrap:anywhere;user-select:all}\n"
    ".word{display:inline-block;max-width:100%}\n"
    "details{margin:.5rem 0}summary{cursor:pointer}\n"
    ".bad{background:var(--badpage);border-left:4px solid var(--bad);padding:.6rem 1rem;"
    "max-width:none;margin:1rem 0;border-radius:0 6px 6px 0}\n"
    ".bad h2{margin:0;padding:0;border:0;color:var(--bad);font-size:1.1rem}\n"
    ".bad ul{padding-left:1.1rem;max-width:none}\n"
    "footer{margin-top:3.5rem;color:var(--soft);font-size:.88rem}\n"
    "@media (max-width:30rem){h1{font-size:1.5rem}tbody th{min-width:8rem}"
    "figure{padding:.5rem .5rem .6rem}nav li:not(.part){display:none}}\n"
    "@media print{.views,nav{display:none}body{max-width:none;padding:0;background:#fff;color:#000}"
    "figure,tr{break-inside:avoid}h2,h3{break-after:avoid}"
    ".row{grid-template-columns:repeat(2,1fr)}}\n";

/* View 0 shows everything, view i what belongs to model i and what belongs to none, without
 * headings of nothing. No script: the radio buttons stand before all that they choose from. */
static void put_view_styles(FILE *out, size_t views) {
    for (size_t i = 0; i < views; i++) {
        fprintf(out,
                "#v%zu:checked~.views label[for=v%zu]{background:var(--text);color:var(--page)}"
                "#v%zu:focus-visible~.views label[for=v%zu]{outline:2px solid var(--link)}\n",
                i, i, i, i);
        if (i)
            fprintf(out,
                    "#v%zu:checked~main .m:not(.m%zu),"
                    "#v%zu:checked~main :is(article,section):has(.m):not(:has(.m%zu))"
                    "{display:none}\n",
                    i, i, i, i);
    }
}

void page_begin(FILE *out, const char *title, size_t views) {
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"generator\" content=\"fathom report " FATHOM_VERSION "\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n<title>",
          out);
    html_text(out, title);
    fprintf(out, "</title>\n<style>\n%s", style);
    put_view_styles(out, views);
    fputs("</style>\n</head>\n<body>\n", out);
}

void page_end(FILE *out) {
    fputs("</body>\n</html>\n", out);
}

/* ---- Text ---- */

static void put_escaped(FILE *out, const char *text) {
    for (; *text; text++) {
        switch (*text) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        case '\'':
            fputs("&#39;", out);
            break;
        default:
            fputc(*text, out);
        }
    }
}

/* In pieces that end between characters. */
static void put_clean(FILE *out, const char *text, size_t length) {
    enum { PIECE = 1000 };
    while (length) {
        char clean[PIECE + 8];
        size_t take = length < PIECE ? length : PIECE;
        for (size_t back = 0;
             back < 3 && take < length && ((unsigned char)text[take] & 0xc0) == 0x80; back++)
            take--;
        clean_text(clean, sizeof clean, text, take);
        put_escaped(out, clean);
        text += take;
        length -= take;
    }
}

void html_text(FILE *out, const char *text) {
    put_clean(out, text, strlen(text));
}

void html_lines(FILE *out, const char *text) {
    while (*text) {
        size_t length = strcspn(text, "\n");
        put_clean(out, text, length);
        text += length;
        if (*text) {
            fputc('\n', out);
            text++;
        }
    }
}

void html_command(FILE *out, const char *command) {
    while (*command) {
        size_t length = strcspn(command, " ");
        fputs("<span class=\"word\">", out);
        put_clean(out, command, length);
        fputs("</span>", out);
        command += length;
        for (; *command == ' '; command++)
            fputc(' ', out);
    }
}

void html_print(FILE *out, const char *format, ...) {
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length >= 0) {
        html_text(out, text);
        free(text);
    }
}

/* ---- Images ---- */

static void put_base64(FILE *out, const unsigned char *in, size_t count) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3) {
        unsigned two = i + 1 < count ? in[i + 1] : 0, three = i + 2 < count ? in[i + 2] : 0;
        unsigned bits = (unsigned)in[i] << 16 | two << 8 | three;
        char four[4] = {digit[bits >> 18], digit[bits >> 12 & 63], digit[bits >> 6 & 63],
                        digit[bits & 63]};
        if (i + 1 >= count)
            four[2] = '=';
        if (i + 2 >= count)
            four[3] = '=';
        fwrite(four, 1, sizeof four, out);
    }
}

/* The number in NAME="123", or 0. */
static unsigned attribute(const char *svg, const char *name) {
    const char *at = strstr(svg, name);
    return at ? (unsigned)strtoul(at + strlen(name), NULL, 10) : 0;
}

int html_svg(FILE *out, const char *path, const char *alt, status *st) {
    enum { LARGEST = 1 << 28 };
    char *text;
    size_t count;
    if (text_read(path, LARGEST, &text, &count, st))
        return FAILED;
    fputs("<img alt=\"", out);
    html_text(out, alt);
    fputc('"', out);
    const char *svg = strstr(text, "<svg");
    unsigned width = svg ? attribute(svg, "width=\"") : 0;
    unsigned height = svg ? attribute(svg, "height=\"") : 0;
    if (width && height)
        fprintf(out, " width=\"%u\" height=\"%u\"", width, height);
    fputs(" src=\"data:image/svg+xml;base64,", out);
    put_base64(out, (const unsigned char *)text, count);
    fputs("\">\n", out);
    free(text);
    return DONE;
}
