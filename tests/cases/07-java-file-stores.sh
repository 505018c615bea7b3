#!/usr/bin/env bash
# Java's file stores, moves, copies, mappings, transfers and locks.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need java
cat >"$T/F.java" <<'J'
import java.nio.file.*; import java.nio.file.attribute.*; import java.nio.channels.*; import java.nio.*; import java.io.*;
public class F { public static void main(String[] a) throws Exception {
  Path d = Path.of(a[0]); Path f = d.resolve("f"); Files.writeString(f, "hello");
  FileStore s = Files.getFileStore(f); if (s.getTotalSpace() <= 0) throw new Exception("space " + s.getTotalSpace());
  if (f.toFile().getUsableSpace() <= 0) throw new Exception("usable");
  Files.move(f, d.resolve("g"), StandardCopyOption.ATOMIC_MOVE); Files.copy(d.resolve("g"), d.resolve("h"), StandardCopyOption.COPY_ATTRIBUTES);
  if (Files.mismatch(d.resolve("g"), d.resolve("h")) != -1) throw new Exception("copy");
  FileInputStream in = new FileInputStream(d.resolve("g").toFile()); if (in.available() != 5) throw new Exception("available " + in.available()); in.close();
  try (FileChannel c = FileChannel.open(d.resolve("m"), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
    MappedByteBuffer m = c.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 20); m.putInt(4096, 42); m.force(); ByteBuffer b = ByteBuffer.allocate(4); c.read(b, 4096); b.flip(); if (b.getInt() != 42) throw new Exception("map");
    try (FileChannel o = FileChannel.open(d.resolve("t"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) { if (c.transferTo(0, 1 << 20, o) != 1 << 20) throw new Exception("transferTo"); }
    try (FileLock l = c.lock()) { if (!l.isValid()) throw new Exception("lock"); }
  }
  System.out.println("fine " + s.type());
} }
J
java -cp "$T" -Xshare:auto "$T/F.java" "$D" 2>"$T/e" >"$T/o" || fail "$(grep -m3 -v '^\s*at java.base' "$T/e" | tr '\n' ' ')"
cat "$T/o"
