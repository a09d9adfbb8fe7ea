#include "plots/sheet.h"

#include "runtime/base/version.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The look of every figure, in one place; each script carries a copy, so that it can be run and
 * changed alone. An svg or pdf draws cells as rectangles, since viewers blur embedded images; a png
 * draws one image, since rectangles leave hairlines. `row` is for a single row of cells, whose
 * second copy only rectangles cut off at the edge in an svg. */
static const char style[] =
    "X(p) = p / real(W)\n"
    "Y(p) = 1 - p / real(H)\n"
    "if (format eq 'svg') set terminal svg size W, H font 'sans-serif,9' noenhanced \\\n"
    "    background rgb 'white'\n"
    "if (format eq 'png') set terminal pngcairo size 3 * W, 3 * H font 'sans-serif,9' \\\n"
    "    fontscale 2.25 linewidth 3 pointscale 3 noenhanced\n"
    "if (format eq 'pdf') set terminal pdfcairo size W / 100.0, H / 100.0 \\\n"
    "    font 'sans-serif,9' fontscale 0.54 linewidth 1.5 pointscale 0.75 noenhanced\n"
    "if (format ne 'svg' && format ne 'png' && format ne 'pdf') { \\\n"
    "    print \"format is '\".format.\"', expected svg, png or pdf\"; exit status 2 }\n"
    "attn = '#0072b2'; mlp = '#d55e00'; final = '#000000'; grey = '#888888'\n"
    "set linetype 1 lc rgb attn pt 7 ps 0.35 lw 1\n"
    "set linetype 2 lc rgb mlp pt 9 ps 0.45 lw 1\n"
    "set linetype 3 lc rgb final pt 5 ps 0.45 lw 1\n"
    "set linetype 4 lc rgb '#009e73' pt 13 ps 0.5 lw 1\n"
    "set linetype 5 lc rgb '#cc79a7' pt 11 ps 0.45 lw 1\n"
    "set linetype 6 lc rgb '#e69f00' pt 6 ps 0.4 lw 1\n"
    "set linetype 7 lc rgb '#56b4e9' pt 8 ps 0.45 lw 1\n"
    "set linetype 8 lc rgb grey pt 4 ps 0.4 lw 1\n"
    "set border front lw 0.5\n"
    "set tics out nomirror scale 0.4, 0.2 font " FONT_TICK " offset 0, 0\n"
    "set xtics offset 0, 0.4\n"
    "set ytics offset 0.5, 0\n"
    "set style fill solid noborder\n"
    "set key off\n";

/* Viridis: even in lightness, safe for colour-blind eyes, and free of the grey that marks other
 * things; written out because gnuplot 5 has no such name. */
static const char sequential_map[] =
    "set palette defined (0 '#440154', 1 '#482878', 2 '#3e4989', 3 '#31688e', 4 '#26828e', \\\n"
    "    5 '#1f9e89', 6 '#35b779', 7 '#6ece58', 8 '#b5de2b', 9 '#fde725')\n";
/* Blue below 0, orange above. In CIELAB the lightness falls from 97 by 11.5 at each of the six
 * steps to both sides, at hues 265 and 50 degrees, which red-green and blue-yellow blindness keep
 * apart (simulated: equal distances from 0 differ by a Delta E of at least 24). */
static const char diverging_map[] =
    "set palette defined (-6 '#11456b', -5 '#1b6193', -4 '#267fbe', -3 '#469de3', \\\n"
    "    -2 '#8ebaea', -1 '#c4d8f1', 0 '#f6f6f6', 1 '#f2cebf', 2 '#e9a78a', 3 '#da8057', \\\n"
    "    4 '#c15c2e', 5 '#9e3f12', 6 '#742b07')\n";

/* ---- Text ---- */

/* Bytes of the valid UTF-8 character at `text`, or 0: overlong forms, surrogates and numbers past
 * U+10FFFF are refused, as XML refuses them. */
static size_t character_bytes(const unsigned char *text, size_t length) {
    if (text[0] < 0x80)
        return text[0] >= 0x20 && text[0] != 0x7f;
    size_t bytes = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
    if (text[0] < 0xc2 || text[0] > 0xf4 || bytes > length)
        return 0;
    for (size_t i = 1; i < bytes; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    unsigned lead = text[0], next = text[1];
    if ((lead == 0xe0 && next < 0xa0) || (lead == 0xed && next > 0x9f) ||
        (lead == 0xf0 && next < 0x90) || (lead == 0xf4 && next > 0x8f) ||
        (lead == 0xc2 && next < 0xa0)) /* C1 controls */
        return 0;
    return bytes;
}

void clean_text(char *out, size_t size, const char *text, size_t length) {
    size_t used = 0;
    for (size_t i = 0; i < length;) {
        size_t bytes = character_bytes((const unsigned char *)text + i, length - i);
        size_t take = bytes ? bytes : 1;
        if (used + take + 4 > size) {
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        if (bytes)
            memcpy(out + used, text + i, bytes);
        else
            out[used] = '?';
        used += take;
        i += take;
    }
    out[used] = 0;
}

void cut_text(char *text, size_t chars) {
    size_t count = 0, keep = 0;
    for (size_t i = 0; text[i]; i++) {
        unsigned char byte = (unsigned char)text[i];
        if ((byte & 0xc0) == 0x80)
            continue;
        if (count + 3 <= chars)
            keep = i;
        count += byte >= 0xe3 ? 2 : 1; /* U+3000 and up */
        if (count > chars) {
            memcpy(text + keep, "...", 4);
            return;
        }
    }
}

/* Whether the character is of a script that common fonts lack; symbols at U+2000 and Greek and
 * Latin at U+1E00 they have. */
static bool is_rare(const char *at) {
    const unsigned char *byte = (const unsigned char *)at;
    return byte[0] > 0xe2 || byte[0] == 0xe0 || (byte[0] == 0xe1 && byte[1] < 0xb8);
}

static void put_quoted(FILE *script, const char *clean, bool plain) {
    fputc('\'', script);
    for (const char *at = clean; *at; at++) {
        bool rare = plain && is_rare(at);
        fputs(rare ? "?" : *at == '\'' ? "''" : (char[]){*at, 0}, script);
        while (rare && (at[1] & 0xc0) == 0x80)
            at++;
    }
    fputc('\'', script);
}

void put_string(FILE *script, const char *text) {
    char clean[1024];
    bool rare = false;
    clean_text(clean, sizeof clean, text, strlen(text));
    for (const char *at = clean; *at; at++)
        rare = rare || is_rare(at);
    fputs(rare ? "(all_letters ? " : "", script);
    put_quoted(script, clean, false);
    if (!rare)
        return;
    fputs(" : ", script);
    put_quoted(script, clean, true);
    fputc(')', script);
}

/* ---- Script ---- */

static void put_comment(FILE *script, const char *label, const char *text) {
    char clean[1024];
    clean_text(clean, sizeof clean, text, strlen(text));
    /* A comment whose line ends in a backslash would go on in the next line. */
    for (size_t end = strlen(clean); end && clean[end - 1] == '\\'; end--)
        clean[end - 1] = '/';
    fprintf(script, "# %s%s\n", label, clean);
}

void sheet_head(FILE *script, const sheet *s, const char *name, const char *title,
                const char *source, const char *format, bool utf8) {
    fprintf(script, "# %s: ", name);
    fprintf(script, "%s\n", title);
    put_comment(script, "drawn by fathom " FATHOM_VERSION " from the table of: ", source);
    fprintf(script,
            "# data: %s.dat. Run in this folder, without fathom:\n"
            "#   gnuplot %s.gp\n"
            "#   gnuplot -e \"format='pdf'\" %s.gp        (or svg, png)\n\n"
            "name = '%s'\n"
            "if (!exists('format')) format = '%s'\n"
            "D = name.'.dat'\n"
            "W = %d; H = %d  # hundredths of an inch\n"
            "row = format eq 'png' ? 'image' : 'image pixels'\n"
            "cells = %s\n",
            name, name, name, name, format, SHEET_WIDTH, s->height, s->dense ? "'image'" : "row");
    if (utf8)
        fputs("set encoding utf8\n"
              "# png and pdf draw letters that no font has over the whole figure: they show ?, "
              "unless\n"
              "#   gnuplot -e \"all_letters=1\" says that there is a font\n"
              "if (!exists('all_letters')) all_letters = format eq 'svg'\n",
              script);
    fputs("\n# ---- style: the same in every figure ----\n", script);
    fputs(style, script);
    fputs(s->diverging ? diverging_map : sequential_map, script);
    fputs("\n# ---- this figure ----\n", script);
}

void sheet_page(const sheet *s, size_t page) {
    if (s->pages > 1 && page > 0)
        fprintf(s->script, "\nif (format ne 'pdf') set output name.'-%zu.'.format\n", page + 1);
    else if (s->pages > 1)
        fputs("set output name.(format eq 'pdf' ? '.' : '-1.').format\n", s->script);
    else
        fputs("set output name.'.'.format\n", s->script);
    fputs("set multiplot\n", s->script);
}

void sheet_page_end(const sheet *s) {
    fputs("unset multiplot\n", s->script);
}

void sheet_panel(const sheet *s, double left, double right, double top, double bottom) {
    fprintf(s->script,
            "set lmargin at screen X(%g); set rmargin at screen X(%g); "
            "set tmargin at screen Y(%g); set bmargin at screen Y(%g)\n",
            left, right, top, bottom);
}

void sheet_label(const sheet *s, double x, double y, const char *text, const char *font,
                 const char *extra) {
    fputs("set label ", s->script);
    put_string(s->script, text);
    fprintf(s->script, " at screen X(%g), Y(%g) font %s %s\n", x, y, font, extra);
}

void sheet_clear_labels(const sheet *s) {
    fputs("unset label\n", s->script);
}

void sheet_titles(const sheet *s, const char *title, const char *subtitle) {
    char text[256];
    clean_text(text, sizeof text, title, strlen(title));
    cut_text(text, TITLE_CHARS);
    sheet_label(s, 6, 9, text, FONT_TITLE, "");
    clean_text(text, sizeof text, subtitle, strlen(subtitle));
    cut_text(text, TITLE_CHARS + 10);
    sheet_label(s, 6, 22, text, FONT_TEXT, "tc rgb '#444444'");
}

size_t sheet_notes(const sheet *s, double y, const char *text, bool draw) {
    size_t lines = 0;
    while (*text) {
        size_t length = strlen(text);
        if (length > NOTE_CHARS) {
            length = NOTE_CHARS;
            while (length > 1 && text[length] != ' ')
                length--;
        }
        char line[NOTE_CHARS + 1];
        memcpy(line, text, length);
        line[length] = 0;
        if (draw)
            sheet_label(s, 6, y + (double)lines * NOTE_LINE, line, FONT_NOTE, "tc rgb '#444444'");
        lines++;
        text += length;
        text += strspn(text, " ");
    }
    return lines;
}

size_t sheet_data(sheet *s, const char *format, ...) {
    if (s->indexes > 0)
        fputs("\n\n", s->data);
    fprintf(s->data, "# index %zu: ", s->indexes);
    va_list args;
    va_start(args, format);
    vfprintf(s->data, format, args);
    va_end(args);
    fputc('\n', s->data);
    return s->indexes++;
}

void put_number(FILE *data, double value, char after) {
    if (isnan(value))
        fputs("nan", data); /* printf may write -nan */
    else
        fprintf(data, "%.6g", value);
    fputc(after, data);
}

/* ---- Colours ---- */

void sheet_scale(const sheet *s, const colour_scale *scale) {
    const char *low = s->diverging ? "-scale_max" : "0";
    if (scale->doublings) {
        fprintf(s->script,
                "# colours show log2 of the ratio; beyond scale_max they keep the last\n"
                "if (!exists('scale_max')) scale_max = %g\n"
                "set cbrange [%s : scale_max]; set cbtics (",
                scale->high, low);
        for (double at = -scale->high; at <= scale->high; at += scale->step)
            fprintf(s->script, "%s'%s%g' %g", at > -scale->high ? ", " : "", at < 0 ? "1/" : "",
                    exp2(fabs(at)), at);
        fputs(") offset 0, 0.5\n", s->script);
        return;
    }
    fputs("# a lower scale_max shows small values; those above it keep the last colour\n",
          s->script);
    char half[32];
    snprintf(half, sizeof half, "%.6g",
             scale->high / 2); /* -high, -half, 0, half, high have room */
    const char *step = !s->diverging      ? "scale_step"
                       : strlen(half) > 4 ? "scale_max"
                                          : "scale_max / 2.0";
    if (!s->diverging)
        fprintf(s->script, "scale_step = exists('scale_max') ? scale_max / 4.0 : %.6g\n",
                scale->step);
    fprintf(s->script,
            "if (!exists('scale_max')) scale_max = %.6g\n"
            "set cbrange [%s : scale_max]; set cbtics %s offset 0, 0.5\n",
            scale->high, low, step);
}

void sheet_colour_bar(const sheet *s, const colour_scale *scale, double left, double y) {
    double bar = left + fmax(80, (double)strlen(scale->name) * 5.3 + 12);
    sheet_label(s, left, y + 5, scale->name, FONT_TEXT, "");
    fprintf(s->script, "set colorbox horizontal user origin X(%g), Y(%g) size X(%g), 8 / real(H)\n",
            bar, y + 9, fmin(170, SHEET_WIDTH - 24 - bar));
}

void sheet_hatch(const sheet *s) {
    fprintf(s->script,
            "set object 1 rectangle from graph 0, 0 to graph 1, 1 behind fc rgb '%s' fs solid\n"
            "set object 2 rectangle from graph 0, 0 to graph 1, 1 behind fc rgb '#aaaaaa' "
            "fs pattern 4 transparent\n",
            s->diverging ? "#e0e0e0" : "#f4f4f4"); /* 0 is light in a diverging map */
}

/* ---- Ticks ---- */

void sheet_count_ticks(const sheet *s, const char *axis, size_t count, double length, double size,
                       bool labels) {
    size_t step = 1;
    while ((double)step * length < size * (double)count)
        step *= 2;
    fprintf(s->script, "set %stics (", axis);
    for (size_t i = 0; i < count; i += step)
        if (labels)
            fprintf(s->script, "%s'%zu' %zu", i ? ", " : "", i, i);
        else
            fprintf(s->script, "%s'' %zu", i ? ", " : "", i);
    fputs(")\n", s->script);
}

nice_range nice_range_of(double low, double high) {
    static const double steps[] = {1, 2, 2.5, 5, 10};
    if (!(high > low))
        high = low + (fabs(low) > 0 ? fabs(low) : 1);
    double power = pow(10, floor(log10((high - low) / 5)));
    size_t i = 0;
    while (i < 4 && (high - low) > 5 * steps[i] * power * (1 + 1e-9))
        i++;
    double step = steps[i] * power;
    return (nice_range){floor(low / step + 1e-9) * step, ceil(high / step - 1e-9) * step, step};
}
