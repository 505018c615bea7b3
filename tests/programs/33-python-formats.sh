#!/usr/bin/env bash
# python: zipfile, tarfile, csv, pickle, json, shelve, gzip and logging.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
python - "$D" <<'END'
import csv, gzip, json, logging.handlers, os, pickle, shelve, sys, tarfile, zipfile
d = sys.argv[1]; os.chdir(d)
rows = [[str(i), "a,b\"c\n" + str(i * i)] for i in range(3000)]
with open("t.csv", "w", newline="") as f: csv.writer(f).writerows(rows)
assert list(csv.reader(open("t.csv", newline=""))) == rows
pickle.dump(rows, open("t.pickle", "wb")); assert pickle.load(open("t.pickle", "rb")) == rows
json.dump(rows, open("t.json", "w")); assert json.load(open("t.json")) == rows
with zipfile.ZipFile("t.zip", "w", zipfile.ZIP_DEFLATED) as z: z.write("t.csv"); z.writestr("inner/x", b"x" * 100000)
with zipfile.ZipFile("t.zip", "a") as z: z.write("t.json")
with zipfile.ZipFile("t.zip") as z:
    assert z.testzip() is None and z.namelist() == ["t.csv", "inner/x", "t.json"]; z.extractall("out")
assert open("out/t.json").read() == open("t.json").read()
with tarfile.open("t.tar.xz", "w:xz") as t: t.add("out")
with tarfile.open("t.tar.xz") as t: assert "out/inner/x" in t.getnames()
with gzip.open("t.gz", "wt") as f: f.write("line\n" * 5000)
assert gzip.open("t.gz", "rt").read().count("line") == 5000
with shelve.open("shelf") as s:
    for i in range(200): s[str(i)] = [i] * i
with shelve.open("shelf") as s: assert all(s[str(i)] == [i] * i for i in range(200))
handler = logging.handlers.RotatingFileHandler("app.log", maxBytes=1500, backupCount=3)
log = logging.getLogger("x"); log.addHandler(handler); log.setLevel("INFO")
for i in range(500): log.info("message %d", i)
assert sorted(n for n in os.listdir() if n.startswith("app")) == ["app.log", "app.log.1", "app.log.2", "app.log.3"]
assert "message 499" in open("app.log").read()
END
