# shellcheck shell=bash
# Prints the results of calls on files in an empty directory.
python3 -B "$SRC/files.py" preloaded
