# shellcheck shell=bash
# What calls on files come to in an empty directory.
python3 -B "$SRC/files.py" preloaded
