#!/bin/sh
# Looks at a page of `fathom report` in a browser without a window: page.sh FILE.html WIDTH...
#
# For each width prints one line: the images and how many of them did not load or have no alternative
# text, the scripts, and by how many pixels the page is wider than that. The page stands in a frame
# of the width, since a window has a smallest one.
set -eu
page=$(realpath "$1")
shift
browser=$(command -v chromium || command -v google-chrome)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$page" "$folder/page.html"
{
    echo '<!doctype html><title>page</title>'
    for width; do
        echo "<iframe width=$width height=800 style='border:0' src=page.html></iframe>"
    done
    cat << 'END'
<pre id="out"></pre>
<script>
window.onload = () => {
    for (const frame of document.querySelectorAll("iframe")) {
        const page = frame.contentDocument, images = [...page.images];
        const broken = images.filter(i => !i.complete || !i.naturalWidth || !i.alt.trim()).length;
        const beyond = page.scrollingElement.scrollWidth - frame.clientWidth;
        document.getElementById("out").textContent += `width ${frame.clientWidth}: ` +
            `${images.length} images, ${broken} broken, ${page.scripts.length} scripts, ` +
            `${Math.max(0, beyond)} pixels beyond the edge\n`;
    }
};
</script>
END
} > "$folder/frames.html"
HOME=$folder "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
    --user-data-dir="$folder/profile" --allow-file-access-from-files --enable-logging=stderr \
    --virtual-time-budget=20000 --dump-dom "file://$folder/frames.html" \
    > "$folder/dom" 2> "$folder/log" || { cat "$folder/log" >&2; exit 1; }
sed -n 's/^.*\(width [0-9]*: .*edge\)$/\1/p' "$folder/dom"
grep CONSOLE "$folder/log" || true
