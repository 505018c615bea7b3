#!/usr/bin/env bash
# g++: iostreams, filesystem, exceptions; a program with a precompiled header.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need g++
cd "$D"
cat >main.cc <<'END'
#include "all.h"
namespace fs = std::filesystem;
int main() {
    { std::ofstream f("numbers"); for (int i = 0; i < 10000; i++) f << i << '\n'; }
    std::fstream f("numbers", std::ios::in | std::ios::out);
    long sum = 0, n; while (f >> n) sum += n;
    f.clear(); f.seekp(0); f << "9"; f.seekg(0); f >> n; f.close();
    fs::create_directories("x/y/z"); fs::copy("numbers", "x/y/z/copy"); fs::rename("x", "w");
    fs::create_symlink("w", "link"); fs::resize_file("w/y/z/copy", 100);
    int count = 0; for (auto &e : fs::recursive_directory_iterator("w")) count += e.exists();
    std::error_code e; fs::remove("w", e);
    std::cout << sum << ' ' << n << ' ' << count << ' ' << fs::file_size("link/y/z/copy") << ' ' << bool(e) << ' ' << fs::remove_all("w") << '\n';
    try { fs::file_size("absent"); } catch (fs::filesystem_error &) { std::cout << "thrown\n"; }
}
END
printf '#include <%s>\n' filesystem fstream iostream >all.h
g++ -std=c++17 -x c++-header all.h -o all.h.gch
g++ -std=c++17 -Winvalid-pch -o program main.cc
equal "$(./program | tr '\n' ' ')" "49995000 9 3 100 1 4 thrown "
