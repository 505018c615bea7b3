#!/usr/bin/env bash
# node: fs in its synchronous, callback and promise forms, streams, watchers apart.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need node
cat >"$D/program.js" <<'END'
const fs = require('fs'), path = require('path'), assert = require('assert'), { pipeline } = require('stream/promises'), zlib = require('zlib');
process.chdir(process.argv[2]);
fs.mkdirSync('a/b/c', { recursive: true });
fs.writeFileSync('a/file', 'x'.repeat(100000));
fs.appendFileSync('a/file', 'end');
assert.strictEqual(fs.readFileSync('a/file', 'utf8').slice(-4), 'xend');
const fd = fs.openSync('a/file', 'r+');
fs.writeSync(fd, 'AB', 10); fs.ftruncateSync(fd, 5000); fs.fsyncSync(fd);
const buffer = Buffer.alloc(4); fs.readSync(fd, buffer, 0, 4, 9); assert.strictEqual(buffer.toString(), 'xABx'); fs.closeSync(fd);
fs.copyFileSync('a/file', 'a/copy'); fs.renameSync('a/copy', 'a/b/copy'); fs.linkSync('a/file', 'hard'); fs.symlinkSync('a/file', 'soft');
assert.strictEqual(fs.statSync('soft').ino, fs.statSync('hard').ino);
assert.throws(() => fs.readFileSync('absent'), { code: 'ENOENT' });
(async () => {
  await Promise.all([...Array(200).keys()].map(i => fs.promises.writeFile(`a/b/c/${i}`, `${i}`)));
  const names = await fs.promises.readdir('a/b/c'); assert.strictEqual(names.length, 200);
  const sum = (await Promise.all(names.map(n => fs.promises.readFile(`a/b/c/${n}`, 'utf8')))).reduce((s, v) => s + Number(v), 0);
  assert.strictEqual(sum, 19900);
  for await (const entry of await fs.promises.opendir('a')) assert(entry.isFile() || entry.isDirectory());
  fs.writeFileSync('big', Buffer.alloc(3000000, 'abc'));
  await pipeline(fs.createReadStream('big'), zlib.createGzip(), fs.createWriteStream('big.gz'));
  await pipeline(fs.createReadStream('big.gz'), zlib.createGunzip(), fs.createWriteStream('again'));
  assert(fs.readFileSync('big').equals(fs.readFileSync('again')));
  await new Promise((ok, no) => fs.stat('big', (e, s) => e ? no(e) : ok(assert.strictEqual(s.size, 3000000))));
  fs.rmSync('a', { recursive: true }); assert(!fs.existsSync('a'));
  assert.strictEqual(fs.realpathSync('.'), process.cwd()); fs.cpSync('big', 'copied');
  console.log('all well');
})();
END
equal "$(node "$D/program.js" "$D")" "all well"
