# Builds zlib's own sources as a static and a shared library, and a small program with each.
CFLAGS := -O2 -fPIC -D_LARGEFILE64_SOURCE=1 -DHAVE_UNISTD_H
OBJECTS := $(patsubst %.c,%.o,$(filter-out pack.c,$(wildcard *.c)))

all: pack pack-shared

libz.a: $(OBJECTS)
	ar rcs $@ $^

libz.so: $(OBJECTS)
	$(CC) -shared -o $@ $^

pack: pack.c libz.a
	$(CC) $(CFLAGS) -I. -o $@ pack.c libz.a

pack-shared: pack.c libz.so
	$(CC) $(CFLAGS) -I. -o $@ pack.c ./libz.so -Wl,-rpath,'$$ORIGIN'

$(OBJECTS): %.o: %.c zlib.h zconf.h
	$(CC) $(CFLAGS) -c -o $@ $<
