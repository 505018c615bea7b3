#!/usr/bin/env bash
# m4 and autoconf generate a configure script, which then runs.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need m4 autoconf gcc
cd "$D"
printf 'define(`double'"'"', `eval($1 * 2)'"'"')dnl\ndouble(21)\ninclude(`part'"'"')dnl\n' >in.m4
echo included >part
equal "$(m4 in.m4 | tr '\n' ' ')" "42 included "
cat >configure.ac <<'END'
AC_INIT([small], [1.0])
AC_CONFIG_HEADERS([config.h])
AC_CONFIG_FILES([out])
AC_PROG_CC
AC_CHECK_HEADERS([unistd.h nonsense.h])
AC_CHECK_FUNCS([mmap])
AC_OUTPUT
END
echo '#undef HAVE_UNISTD_H' >config.h.in
echo 'package @PACKAGE_NAME@' >out.in
autoconf
./configure -q --cache-file=config.cache
equal "$(cat out)" "package small"
grep -q '^#define HAVE_UNISTD_H 1' config.h
./config.status -q
./configure -q --cache-file=config.cache
