#!/usr/bin/env bash
# cmake with ninja: configure, build, rebuild nothing, install.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need cmake ninja gcc
cd "$D"
mkdir src
cat >src/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.16)
project(small C)
include(CheckFunctionExists)
check_function_exists(mmap HAVE_MMAP)
configure_file(config.h.in config.h)
include_directories(${CMAKE_CURRENT_BINARY_DIR})
add_library(part SHARED part.c)
add_executable(program main.c)
target_link_libraries(program part)
install(TARGETS program part)
END
echo '#cmakedefine HAVE_MMAP' >src/config.h.in
printf '#include "config.h"\n#ifdef HAVE_MMAP\nint part(void) { return 42; }\n#endif\n' >src/part.c
printf '#include <stdio.h>\nint part(void);\nint main(void) { printf("%%d\\n", part()); return 0; }\n' >src/main.c
cmake -S src -B build -G Ninja -DCMAKE_INSTALL_PREFIX="$D/usr" >"$T/configure.log"
ninja -C build >"$T/build.log"
equal "$(build/program)" 42
ninja -C build | grep 'no work to do' >/dev/null
echo >>src/main.c
equal "$(ninja -C build | grep -c '^\[')" 2
cmake --install build >/dev/null
equal "$(LD_LIBRARY_PATH=$D/usr/lib usr/bin/program)" 42
