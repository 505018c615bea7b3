import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.AsynchronousFileChannel;
import java.nio.channels.FileChannel;
import java.nio.channels.FileChannel.MapMode;
import java.nio.channels.FileLock;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.zip.CRC32;

import static java.nio.file.StandardOpenOption.*;

/** Maps of a file: by one process, by two, forced, private, beside reads, writes and locks. */
public class Maps {
    static final int SIZE = 24 << 20;

    static void check(boolean holds, Object... words) {
        if (!holds) throw new AssertionError(java.util.Arrays.toString(words));
    }

    static byte at(int place, int round) {
        return (byte) (place * 31 + (place >> 12) * 7 + round);
    }

    static FileChannel open(Path path) throws IOException {
        return FileChannel.open(path, READ, WRITE, CREATE);
    }

    public static void main(String[] words) throws Exception {
        Path path = Path.of(words[1]);
        if (words[0].equals("second")) {
            second(path);
            return;
        }
        shared(path);
        withAnother(path);
        beside(path);
        Files.delete(path);
        System.out.println("all well");
    }

    /** A map that makes the file longer, is forced, and is what reads find. */
    static void shared(Path path) throws IOException {
        try (FileChannel file = open(path)) {
            MappedByteBuffer map = file.map(MapMode.READ_WRITE, 0, SIZE);
            check(file.size() == SIZE, file.size());
            for (int round = 0; round < 3; round++) {
                for (int place = 0; place < SIZE; place++) map.put(place, at(place, round));
                if (round == 1) map.force();
                if (round == 2) map.force(1 << 20, 1 << 20);
                ByteBuffer read = ByteBuffer.allocateDirect(1 << 20);
                for (int begin = 0; begin < SIZE; begin += 1 << 20) {
                    read.clear();
                    while (read.hasRemaining()) check(file.read(read, begin + read.position()) > 0);
                    for (int place = 0; place < 1 << 20; place += 97)
                        check(read.get(place) == at(begin + place, round), begin, place, round);
                }
            }
            MappedByteBuffer own = file.map(MapMode.PRIVATE, 4096, 8192);
            own.put(0, (byte) 99);
            check(map.get(4096) == at(4096, 2) && own.get(1) == at(4097, 2), "private");
            MappedByteBuffer reader = file.map(MapMode.READ_ONLY, 0, SIZE);
            file.write(ByteBuffer.wrap(new byte[] {1, 2, 3}), 5000);
            check(reader.get(5001) == 2 && map.get(5002) == 3, "written, then mapped");
        }
    }

    /** Two processes take turns with one map, under a lock of the file. */
    static void withAnother(Path path) throws Exception {
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        String classes = System.getProperty("java.class.path");
        try (FileChannel file = open(path)) {
            MappedByteBuffer map = file.map(MapMode.READ_WRITE, 0, 8192);
            map.putInt(0, 0);
            Process other;
            try (FileLock held = file.lock(0, 100, false)) {
                other = new ProcessBuilder(java, "-cp", classes, "Maps", "second", path.toString())
                    .redirectErrorStream(true).start();
                map.putInt(4096, 12345);
                // It reports that the lock is taken, and waits for it.
                String line = new java.io.BufferedReader(
                    new java.io.InputStreamReader(other.getInputStream())).lines()
                    .filter(text -> !text.startsWith("Picked up")).findFirst().orElse("nothing");
                check(line.equals("locked"), line);
                map.putInt(0, 1);
            }
            check(other.waitFor() == 0, "the other failed");
            check(map.getInt(0) == 2 && map.getInt(4096) == 54321, map.getInt(0), map.getInt(4096));
            check(file.tryLock(0, 100, false) != null, "free again");
        }
    }

    static void second(Path path) throws Exception {
        try (FileChannel file = open(path)) {
            MappedByteBuffer map = file.map(MapMode.READ_WRITE, 0, 8192);
            System.out.println(file.tryLock(0, 100, false) == null ? "locked" : "free");
            try (FileLock taken = file.lock(50, 10, true)) {
                check(map.getInt(0) == 1 && map.getInt(4096) == 12345, map.getInt(0));
                map.putInt(0, 2);
                map.putInt(4096, 54321);
            }
        }
    }

    /** Transfers inside the kernel, other channels, and a copy that takes a name's place. */
    static void beside(Path path) throws Exception {
        Path copy = path.resolveSibling("copy");
        try (FileChannel from = open(path); FileChannel to = open(copy)) {
            for (long done = 0; done < SIZE; ) done += from.transferTo(done, SIZE - done, to);
            check(to.size() == SIZE, to.size());
        }
        try (AsynchronousFileChannel file = AsynchronousFileChannel.open(copy, READ, WRITE)) {
            check(file.write(ByteBuffer.allocate(1000), SIZE).get() == 1000, "appended");
            check(file.read(ByteBuffer.allocate(10), SIZE + 995).get() == 5, "read at the end");
            check(file.tryLock() != null, "locked");
        }
        try (FileChannel file = FileChannel.open(copy, WRITE)) {
            file.truncate(SIZE);
        }
        check(sum(path) == sum(copy), "copy");
        Files.move(copy, path, StandardCopyOption.ATOMIC_MOVE);
        check(Files.size(path) == SIZE && !Files.exists(copy), "moved");
    }

    static long sum(Path path) throws IOException {
        CRC32 sum = new CRC32();
        try (FileChannel file = FileChannel.open(path, READ)) {
            sum.update(file.map(MapMode.READ_ONLY, 0, file.size()));
        }
        return sum.getValue();
    }
}
