import java.io.*;
import java.nio.*;
import java.nio.channels.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.nio.file.attribute.*;
import java.util.*;

/** The Files API, channels, maps and locks, below the directory given. */
public class Program {
    static void check(boolean good, String what) {
        if (!good) throw new AssertionError(what);
    }

    public static void main(String[] args) throws Exception {
        Path root = Paths.get(args[0]);
        Files.createDirectories(root.resolve("x/y"));
        Path file = root.resolve("x/file");
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < 5000; i++) lines.add("line " + i);
        Files.write(file, lines);
        check(Files.readAllLines(file).equals(lines), "lines");
        Files.copy(file, root.resolve("copy"));
        Files.move(root.resolve("copy"), root.resolve("x/y/moved"), StandardCopyOption.ATOMIC_MOVE);
        check(Files.mismatch(file, root.resolve("x/y/moved")) == -1, "copy differs");
        Files.createSymbolicLink(root.resolve("soft"), Paths.get("x/file"));
        Files.createLink(root.resolve("hard"), file);
        check(Files.isSameFile(root.resolve("soft"), root.resolve("hard")), "links");
        Files.setLastModifiedTime(file, FileTime.fromMillis(1000000000000L));
        check(Files.getLastModifiedTime(file).toMillis() == 1000000000000L, "time");
        Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-r-----"));
        check(Files.readAttributes(file, PosixFileAttributes.class).permissions().size() == 3, "mode");
        try (DirectoryStream<Path> entries = Files.newDirectoryStream(root)) {
            int count = 0;
            for (Path ignored : entries) count++;
            check(count == 3, "entries " + count);
        }
        channels(root);
        try (RandomAccessFile random = new RandomAccessFile(root.resolve("random").toFile(), "rw")) {
            random.setLength(10000);
            random.seek(5000);
            random.writeUTF("middle");
            random.seek(5000);
            check(random.readUTF().equals("middle") && random.length() == 10000, "random access");
        }
        try (Writer writer = Files.newBufferedWriter(root.resolve("log"), StandardOpenOption.CREATE, StandardOpenOption.APPEND)) {
            for (int i = 0; i < 1000; i++) writer.write("entry\n");
        }
        check(Files.size(root.resolve("log")) == 6000, "append");
        try {
            Files.createFile(file);
            check(false, "created twice");
        } catch (FileAlreadyExistsException expected) {
            check(Files.walk(root).count() == 10, "walk");
        }
        System.out.println("all well");
    }

    static void channels(Path root) throws IOException {
        Path path = root.resolve("mapped");
        try (FileChannel channel = FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            MappedByteBuffer map = channel.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 20);
            for (int i = 0; i < 1 << 18; i++) map.putInt(i * 7);
            map.force();
            ByteBuffer back = ByteBuffer.allocate(4);
            channel.read(back, 4 * 100000);
            check(back.getInt(0) == 700000, "map and read");
            channel.write(ByteBuffer.wrap("hello".getBytes(StandardCharsets.UTF_8)), 8192);
            check(map.get(8192) == 'h', "write and map");
            try (FileLock lock = channel.lock(0, 100, false)) {
                check(lock.isValid(), "lock");
            }
            try (FileChannel out = FileChannel.open(root.resolve("x/transfer"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
                long done = 0;
                while (done < channel.size()) done += channel.transferTo(done, channel.size() - done, out);
            }
        }
        check(Files.mismatch(path, root.resolve("x/transfer")) == -1, "transfer");
        Files.delete(root.resolve("x/transfer"));
    }
}
