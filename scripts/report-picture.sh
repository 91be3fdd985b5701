#!/usr/bin/env bash
# Makes cmd/report/report.png, the README's image of a report: trains configs/mnist-cnn.yaml for three epochs, and shows
# two parts of its page beside each other. Needs build/dptrain and Chromium (Debian's package `chromium`); takes a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/mpi-env.sh
. scripts/lib/mpi-env.sh

picture=$PWD/cmd/report/report.png
program=$PWD/build/dptrain
tree=$PWD
width=980 height=1165 scale=0.65 # of each part, and of both
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo "report-picture.sh: no Chromium here" >&2
    exit 1
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for part in train t10k; do
    "$program" convert idx "$tree/data/mnist/$part-images-idx3-ubyte.gz" "$tree/data/mnist/$part-labels-idx1-ubyte.gz" \
        --output "data/$part" --quiet
done
"$program" "$tree/configs/mnist-cnn.yaml" --ranks 2 --quiet --output runs/mnist-cnn --set train.epochs=3 --set eval.every='100 steps' \
    --set 'data.train=data/train-*.h5' --set 'data.test=data/t10k-*.h5'
"$program" report runs/mnist-cnn -o report.html --quiet
part="<iframe src='report.html%s' style='border:0;width:${width}px;height:${height}px'></iframe>"
# shellcheck disable=SC2059
{
    printf "<!DOCTYPE html><body style='margin:0;display:flex;zoom:$scale'>"
    printf "$part" ''
    printf "$part" '#predictions'
} >both.html
across=$(awk "BEGIN { print int(2 * $width * $scale) }") down=$(awk "BEGIN { print int($height * $scale) }")
"$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --user-data-dir="$folder/profile" \
    --blink-settings=preferredColorScheme=1 --virtual-time-budget=4000 --window-size="$across,$((down + 150))" \
    --screenshot="$folder/shot.png" "file://$folder/both.html" 2>/dev/null
# The window is higher by what the browser takes of it; here the image is cut off below.
python3 - "$folder/shot.png" "$picture" "$down" <<'END'
import struct, sys, zlib
file, rows = open(sys.argv[1], "rb").read(), int(sys.argv[3])
head, data, at = None, b"", 8
while at < len(file):
    n = struct.unpack(">I", file[at:at + 4])[0]
    kind, body, at = file[at + 4:at + 8], file[at + 8:at + 8 + n], at + n + 12
    head, data = (body if kind == b"IHDR" else head), data + (body if kind == b"IDAT" else b"")
width, _, depth, colour = struct.unpack(">IIBB", head[:10])
row = 1 + width * {2: 3, 6: 4}[colour] * depth // 8
parts = [(b"IHDR", struct.pack(">II", width, rows) + head[8:]), (b"IDAT", zlib.compress(zlib.decompress(data)[:row * rows], 9)), (b"IEND", b"")]
with open(sys.argv[2], "wb") as out:
    out.write(b"\x89PNG\r\n\x1a\n")
    for kind, body in parts:
        out.write(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
END
ls -l "$picture"
