#!/usr/bin/env bash
# perl: open modes, seek, -i, File::Find, rename, opendir, stat.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need perl
make_tree "$D/t"
perl -w - "$D" <<'END'
use strict; use Fcntl qw(:DEFAULT :seek :flock); use File::Find; use File::Temp; use File::Copy; use File::Path qw(make_path remove_tree);
my $d = shift;
open(my $f, '+>', "$d/rw") or die "open: $!";
print $f "line $_\n" for 1..1000;
seek($f, 0, SEEK_SET); my @lines = <$f>; @lines == 1000 or die "lines " . @lines;
seek($f, -5, SEEK_END); read($f, my $tail, 5); $tail eq "1000\n" or die "tail $tail";
flock($f, LOCK_EX) or die "flock $!"; truncate($f, 7) or die; close $f; -s "$d/rw" == 7 or die "size";
open($f, '>>', "$d/rw") or die; print $f "more\n"; close $f; -s "$d/rw" == 12 or die;
sysopen($f, "$d/rw", O_WRONLY | O_CREAT | O_EXCL) and die "O_EXCL"; $!{EEXIST} or die "errno $!";
my ($files, $bytes) = (0, 0);
find(sub { if (-f && !-l) { $files++; $bytes += -s } }, "$d/t"); $files == 209 or die "files $files";
my @s = stat("$d/t/a/file-4096"); $s[7] == 4096 && $s[9] == 981173106 or die "stat @s[7,9] (zone?)" if ($ENV{TZ} // '') eq 'UTC';
opendir(my $h, "$d/t/many") or die; my %seen; $seen{$_}++ while defined($_ = readdir $h); keys %seen == 202 or die; closedir $h;
rename("$d/rw", "$d/renamed") or die; -e "$d/rw" and die; copy("$d/renamed", "$d/copied") or die;
my @glob = glob("$d/t/many/entry-1?"); @glob == 10 or die "glob " . @glob;
my $tmp = File::Temp->new(DIR => $d); print $tmp "x"; close $tmp; -s "$tmp" == 1 or die;
make_path("$d/p/q/r"); remove_tree("$d/p"); -d "$d/p" and die;
utime(1, 2, "$d/copied") or die; (stat "$d/copied")[9] == 2 or die "utime";
local $/; open($f, '<:raw', "$d/t/a/file-300000") or die; length(<$f>) == 300000 or die;
END
seq 100 >"$D/n"
perl -pi -e 's/^(\d)$/0$1/' "$D/n"
seq 100 | sed 's/^.$/0&/' | cmp - "$D/n"
perl -i.orig -ne 'print unless /1/' "$D/n"
equal "$(wc -l <"$D/n.orig")" 100
