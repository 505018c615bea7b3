//! A store in one SQLite file of a user.
//!
//! Several processes write it at one time: `forebay run` at its end, and the recorder of each instance.
//! On a local file system it has a write-ahead log (WAL), whose index is memory that the processes of one
//! host share. A home directory is often on a network file system, which several hosts write: there it
//! has a rollback journal, which needs only the locks of that file system. A host that finds the file in
//! the other mode changes it, or leaves it alone while somebody has it open.

use crate::error::HistoryError;
use crate::record::{Advice, EventRecord, FIGURES, JobRun, LoadSample, Record, Span};
use crate::store::{Query, Retention, SECONDS_KEPT_MS, Store, integer, minute_sums, natural};
use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Row, Transaction, params};
use std::fs::{DirBuilder, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version of the tables, in `user_version`.
const VERSION: i64 = 1;
/// How long a statement waits for another process. Writes take milliseconds.
const BUSY_TIME: Duration = Duration::from_secs(2);
/// Least bound of a store: with less, one profile of a large job pushes all others out.
pub const BYTES_MIN: u64 = 1 << 20;
/// Passes that remove old rows to make space for new ones; each removes a tenth of what is left.
const PASSES_MAX: usize = 40;
/// A device with less free space counts as full: SQLite writes its log in parts of up to 4 MiB.
const SPARE_BYTES: u64 = 8 << 20;

const SCHEMA: &str = "
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    instance TEXT NOT NULL, job TEXT NOT NULL, begin_ms INTEGER NOT NULL,
    user TEXT NOT NULL, command TEXT NOT NULL, seconds REAL NOT NULL,
    is_complete INTEGER NOT NULL, is_sampled INTEGER NOT NULL,
    hosts INTEGER NOT NULL, ranks INTEGER NOT NULL, operations INTEGER NOT NULL,
    bytes_read INTEGER NOT NULL, bytes_written INTEGER NOT NULL, io_seconds REAL NOT NULL,
    profile TEXT NOT NULL,
    UNIQUE (instance, job, begin_ms)
);
CREATE INDEX jobs_by_time ON jobs (begin_ms);
CREATE INDEX jobs_by_name ON jobs (job, begin_ms);
CREATE TABLE advice (
    run INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    place INTEGER NOT NULL, trigger_name TEXT NOT NULL, severity TEXT NOT NULL,
    evidence TEXT NOT NULL, change TEXT NOT NULL, saves_seconds REAL,
    PRIMARY KEY (run, place)
) WITHOUT ROWID;
CREATE TABLE events (
    at_ms INTEGER NOT NULL, instance TEXT NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX events_by_time ON events (at_ms);
";

const LOAD_COLUMNS: &str = "
    instance TEXT NOT NULL, job TEXT NOT NULL, at_ms INTEGER NOT NULL, samples INTEGER NOT NULL,";

/// The file of a user.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Connection,
    directory: PathBuf,
    retention: Retention,
}

impl SqliteStore {
    /// Opens the store at `path`, and makes it if there is none.
    ///
    /// # Errors
    /// It cannot be made, is damaged, or of a newer version.
    pub fn open(path: &Path, retention: Retention) -> Result<SqliteStore, HistoryError> {
        let other = |error: std::io::Error| match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => HistoryError::DeviceFull,
            _ => HistoryError::Other(error.to_string()),
        };
        let directory = path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(other)?;
        // SQLite makes files that others may read.
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(other(error)),
        }
        SqliteStore::connect(path, retention, "NORMAL")
    }

    /// Opens the store at `path` to read it. Where the device has no space for the index that processes
    /// share, it is kept in this one, and no other uses the store meanwhile.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_to_read(path: &Path, retention: Retention) -> Result<SqliteStore, HistoryError> {
        match SqliteStore::open(path, retention) {
            Err(HistoryError::DeviceFull) => SqliteStore::connect(path, retention, "EXCLUSIVE"),
            opened => opened,
        }
    }

    fn connect(
        path: &Path,
        retention: Retention,
        locking: &str,
    ) -> Result<SqliteStore, HistoryError> {
        let connection = Connection::open(path).map_err(|error| error_of(&error))?;
        let directory = path.parent().unwrap_or(Path::new(".")).to_owned();
        let is_local = is_local(&directory);
        let mut store = SqliteStore { connection, directory, retention };
        let locked =
            store.connection.query_row(&format!("PRAGMA locking_mode = {locking}"), [], |_| Ok(()));
        let prepared = locked.and_then(|()| store.prepare(is_local));
        prepared.map_err(|error| store.failure(&error))??;
        Ok(store)
    }

    /// The kind of an error: a device without space is also one that cannot map the shared index.
    fn failure(&self, error: &rusqlite::Error) -> HistoryError {
        let is_io = error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure);
        match is_io && !self.has_space() {
            true => HistoryError::DeviceFull,
            false => error_of(error),
        }
    }

    fn prepare(&mut self, is_local: bool) -> rusqlite::Result<Result<(), HistoryError>> {
        let bytes_max = self.bytes_max();
        let connection = &mut self.connection;
        connection.busy_timeout(BUSY_TIME)?;
        let version = version(connection)?;
        if version > VERSION {
            return Ok(Err(HistoryError::Newer(version)));
        }
        let mode = if is_local { "wal" } else { "delete" };
        // While another process has it open in the other mode, this fails; it is read and written as
        // it is on a local file system, where both modes work.
        let now = connection
            .query_row(&format!("PRAGMA journal_mode = {mode}"), [], |row| row.get::<_, String>(0));
        match now {
            Ok(_) if is_local => {}
            Ok(now) if now == mode => {}
            Ok(_) => return Ok(Err(HistoryError::Busy)),
            Err(error) if is_local && error_of(&error) == HistoryError::Busy => {}
            Err(error) => return Err(error),
        }
        // A process that is killed loses nothing by this; a host that loses power, the last seconds.
        connection.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;")?;
        let page = connection.query_row("PRAGMA page_size", [], |row| number(row, 0))?;
        let pages = bytes_max / page.max(1);
        connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
        if version < VERSION {
            let change =
                connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            // Another process may have made the tables since.
            if self::version(&change)? < VERSION {
                make_tables(&change)?;
            }
            change.commit()?;
        }
        Ok(Ok(()))
    }

    /// Runs `step` in a transaction. If the store is full, older rows go, and it runs again.
    fn change(
        &mut self,
        step: impl Fn(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), HistoryError> {
        let mut passes = 0;
        loop {
            match self.attempt(&step) {
                Ok(()) => return Ok(()),
                Err(error) if is_full(&error) => {
                    if !self.has_space() {
                        return Err(HistoryError::DeviceFull);
                    }
                    passes += 1;
                    let removed = self.remove_oldest().map_err(|error| error_of(&error))?;
                    if removed == 0 || passes > PASSES_MAX {
                        return Err(HistoryError::TooLarge);
                    }
                }
                Err(error) => return Err(self.failure(&error)),
            }
        }
    }

    fn attempt(
        &mut self,
        step: &impl Fn(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let immediate = rusqlite::TransactionBehavior::Immediate;
        let change = self.connection.transaction_with_behavior(immediate)?;
        step(&change)?;
        change.commit()
    }

    fn bytes_max(&self) -> u64 {
        self.retention.bytes_max.max(BYTES_MIN)
    }

    /// True if the device has space, so that a full store is at its bound.
    fn has_space(&self) -> bool {
        let found = rustix::fs::statvfs(&self.directory);
        found.is_ok_and(|space| space.f_bavail.saturating_mul(space.f_frsize) > SPARE_BYTES)
    }

    /// Removes the oldest tenth of each table. Returns the number of rows.
    fn remove_oldest(&mut self) -> rusqlite::Result<usize> {
        let mut removed = 0;
        for (table, time) in
            [("seconds", "at_ms"), ("minutes", "at_ms"), ("events", "at_ms"), ("jobs", "begin_ms")]
        {
            removed += self.connection.execute(
                &format!(
                    "DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} ORDER BY {time} \
                     LIMIT (SELECT (count(*) + 9) / 10 FROM {table}))"
                ),
                [],
            )?;
        }
        Ok(removed)
    }
}

impl Store for SqliteStore {
    fn write(&mut self, records: &[Record]) -> Result<(), HistoryError> {
        // It would push everything else out before it is refused.
        if records.iter().any(|record| bytes(record) > self.bytes_max() / 2) {
            return Err(HistoryError::TooLarge);
        }
        self.change(|change| records.iter().try_for_each(|record| insert(change, record)))
    }

    fn tidy(&mut self, now_ms: u64) -> Result<(), HistoryError> {
        let minute = now_ms - now_ms % 60_000;
        let oldest = integer(now_ms.saturating_sub(self.retention.keep_ms));
        // Whole minutes only: what is left of one would replace its mean.
        let oldest_second = integer(minute.saturating_sub(SECONDS_KEPT_MS));
        let minute = integer(minute);
        let sums = minute_sums();
        let columns = FIGURES.join(", ");
        let roll_up = format!(
            "INSERT OR REPLACE INTO minutes (instance, job, at_ms, samples, {columns}) \
             SELECT instance, job, at_ms / 60000 * 60000, count(*), {sums} FROM seconds \
             WHERE at_ms < ?1 GROUP BY instance, job, at_ms / 60000"
        );
        self.change(|change| {
            change.prepare(&roll_up)?.execute([minute])?;
            change.execute("DELETE FROM seconds WHERE at_ms < ?1", [oldest_second])?;
            change.execute("DELETE FROM minutes WHERE at_ms < ?1", [oldest])?;
            change.execute("DELETE FROM events WHERE at_ms < ?1", [oldest])?;
            change.execute("DELETE FROM jobs WHERE begin_ms < ?1", [oldest])?;
            Ok(())
        })
    }

    fn runs(&mut self, query: &Query) -> Result<Vec<JobRun>, HistoryError> {
        self.read_runs(query).map_err(|error| error_of(&error))
    }

    fn profile(&mut self, job: &str, back: usize) -> Result<Option<String>, HistoryError> {
        let sql = "SELECT profile FROM jobs WHERE job = ?1 ORDER BY begin_ms DESC, id DESC \
                   LIMIT 1 OFFSET ?2";
        let back = i64::try_from(back).unwrap_or(i64::MAX);
        let found = self.connection.query_row(sql, params![job, back], |row| row.get(0));
        found.optional().map_err(|error| error_of(&error))
    }

    fn load(&mut self, span: Span, query: &Query) -> Result<Vec<LoadSample>, HistoryError> {
        let sql = format!(
            "SELECT instance, job, at_ms, samples, {} FROM {} WHERE at_ms >= ?1 AND \
             (?2 IS NULL OR instance = ?2) AND job = ?3 ORDER BY at_ms DESC LIMIT ?4",
            FIGURES.join(", "),
            span.table()
        );
        let job = query.job.clone().unwrap_or_default();
        let read = |connection: &Connection| -> rusqlite::Result<Vec<_>> {
            let mut statement = connection.prepare(&sql)?;
            let rows = params![integer(query.since_ms), query.instance, job, query.limit()];
            statement.query_map(rows, load_sample)?.collect()
        };
        read(&self.connection).map_err(|error| error_of(&error))
    }

    fn events(&mut self, query: &Query) -> Result<Vec<EventRecord>, HistoryError> {
        let sql = "SELECT instance, at_ms, kind, text FROM events WHERE at_ms >= ?1 AND \
                   (?2 IS NULL OR instance = ?2) ORDER BY at_ms DESC, rowid DESC LIMIT ?3";
        let read = |connection: &Connection| -> rusqlite::Result<Vec<_>> {
            let mut statement = connection.prepare(sql)?;
            let rows = params![integer(query.since_ms), query.instance, query.limit()];
            let event = |row: &Row<'_>| {
                Ok(EventRecord {
                    instance: row.get(0)?,
                    at_ms: number(row, 1)?,
                    kind: row.get(2)?,
                    text: row.get(3)?,
                })
            };
            statement.query_map(rows, event)?.collect()
        };
        read(&self.connection).map_err(|error| error_of(&error))
    }
}

impl SqliteStore {
    fn read_runs(&self, query: &Query) -> rusqlite::Result<Vec<JobRun>> {
        let mut statement = self.connection.prepare(
            "SELECT id, instance, job, user, command, begin_ms, seconds, is_complete, is_sampled, \
             hosts, ranks, operations, bytes_read, bytes_written, io_seconds FROM jobs \
             WHERE begin_ms >= ?1 AND (?2 IS NULL OR instance = ?2) AND (?3 IS NULL OR job = ?3) \
             ORDER BY begin_ms DESC, id DESC LIMIT ?4",
        )?;
        let rows = params![integer(query.since_ms), query.instance, query.job, query.limit()];
        let runs = statement.query_map(rows, |row| Ok((row.get::<_, i64>(0)?, run(row)?)))?;
        let mut runs: Vec<(i64, JobRun)> = runs.collect::<rusqlite::Result<_>>()?;
        let mut advice = self.connection.prepare(
            "SELECT trigger_name, severity, evidence, change, saves_seconds FROM advice \
             WHERE run = ?1 ORDER BY place",
        )?;
        for (id, run) in &mut runs {
            let found = advice.query_map([*id], |row| {
                Ok(Advice {
                    trigger: row.get(0)?,
                    severity: row.get(1)?,
                    evidence: row.get(2)?,
                    change: row.get(3)?,
                    saves_seconds: row.get(4)?,
                })
            })?;
            run.advice = found.collect::<rusqlite::Result<_>>()?;
        }
        Ok(runs.into_iter().map(|(_, run)| run).collect())
    }
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

fn make_tables(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(SCHEMA)?;
    let figures = FIGURES.map(|name| format!("{name} REAL")).join(", ");
    for table in [Span::Second.table(), Span::Minute.table()] {
        connection.execute_batch(&format!(
            "CREATE TABLE {table} ({LOAD_COLUMNS} {figures}, UNIQUE (instance, job, at_ms)); \
             CREATE INDEX {table}_by_time ON {table} (at_ms);"
        ))?;
    }
    connection.execute_batch(&format!("PRAGMA user_version = {VERSION}"))
}

fn insert(change: &Transaction<'_>, record: &Record) -> rusqlite::Result<()> {
    match record {
        Record::Run(run) => insert_run(change, run),
        Record::Load(sample) => {
            let marks = vec!["?"; FIGURES.len() + 4].join(", ");
            let columns = FIGURES.join(", ");
            let sql = format!(
                "INSERT OR REPLACE INTO seconds (instance, job, at_ms, samples, {columns}) \
                 VALUES ({marks})"
            );
            let mut values = vec![
                Value::from(sample.instance.clone()),
                Value::from(sample.job.clone()),
                Value::from(integer(sample.at_ms)),
                Value::from(integer(sample.samples)),
            ];
            // A figure that is not known is no number, which SQLite keeps as NULL.
            values.extend(sample.figures.iter().map(|figure| Value::from(*figure)));
            change.prepare(&sql)?.execute(rusqlite::params_from_iter(values)).map(|_| ())
        }
        Record::Event(event) => {
            let sql = "INSERT INTO events (at_ms, instance, kind, text) VALUES (?1, ?2, ?3, ?4)";
            let values = params![integer(event.at_ms), event.instance, event.kind, event.text];
            change.prepare(sql)?.execute(values).map(|_| ())
        }
    }
}

fn insert_run(change: &Transaction<'_>, run: &JobRun) -> rusqlite::Result<()> {
    let mut statement = change.prepare(
        "INSERT OR REPLACE INTO jobs (instance, job, begin_ms, user, command, seconds, is_complete, \
         is_sampled, hosts, ranks, operations, bytes_read, bytes_written, io_seconds, profile) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
    )?;
    let id = statement.insert(params![
        run.instance,
        run.job,
        integer(run.begin_ms),
        run.user,
        run.command,
        run.seconds,
        run.is_complete,
        run.is_sampled,
        integer(run.hosts),
        integer(run.ranks),
        integer(run.operations),
        integer(run.bytes_read),
        integer(run.bytes_written),
        run.io_seconds,
        run.profile,
    ])?;
    let mut statement = change.prepare(
        "INSERT INTO advice (run, place, trigger_name, severity, evidence, change, saves_seconds) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    for (place, advice) in run.advice.iter().enumerate() {
        statement.execute(params![
            id,
            i64::try_from(place).unwrap_or(i64::MAX),
            advice.trigger,
            advice.severity,
            advice.evidence,
            advice.change,
            advice.saves_seconds,
        ])?;
    }
    Ok(())
}

fn run(row: &Row<'_>) -> rusqlite::Result<JobRun> {
    Ok(JobRun {
        instance: row.get(1)?,
        job: row.get(2)?,
        user: row.get(3)?,
        command: row.get(4)?,
        begin_ms: number(row, 5)?,
        seconds: row.get(6)?,
        is_complete: row.get(7)?,
        is_sampled: row.get(8)?,
        hosts: number(row, 9)?,
        ranks: number(row, 10)?,
        operations: number(row, 11)?,
        bytes_read: number(row, 12)?,
        bytes_written: number(row, 13)?,
        io_seconds: row.get(14)?,
        advice: Vec::new(),
        profile: String::new(),
    })
}

fn load_sample(row: &Row<'_>) -> rusqlite::Result<LoadSample> {
    let mut sample = LoadSample {
        instance: row.get(0)?,
        job: row.get(1)?,
        at_ms: number(row, 2)?,
        samples: number(row, 3)?,
        ..LoadSample::default()
    };
    for (place, figure) in sample.figures.iter_mut().enumerate() {
        *figure = row.get(place + 4)?;
    }
    Ok(sample)
}

/// Bytes of what a record has of any length.
fn bytes(record: &Record) -> u64 {
    let length = match record {
        Record::Run(run) => run.profile.len(),
        Record::Load(sample) => sample.job.len(),
        Record::Event(event) => event.text.len(),
    };
    length as u64
}

fn number(row: &Row<'_>, place: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(place).map(natural)
}

fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

fn error_of(error: &rusqlite::Error) -> HistoryError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => HistoryError::Busy,
        Some(ErrorCode::DiskFull) => HistoryError::DeviceFull,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            HistoryError::Damaged(error.to_string())
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            HistoryError::Other(format!("it cannot be opened for writing: {error}"))
        }
        // Tables or columns are not those of this version.
        None if matches!(error, rusqlite::Error::InvalidColumnType(..)) => {
            HistoryError::Damaged(error.to_string())
        }
        _ => HistoryError::Other(error.to_string()),
    }
}

/// True if only processes of this host write below `directory`.
fn is_local(directory: &Path) -> bool {
    // ext4, XFS, Btrfs, tmpfs, ZFS, F2FS, overlayfs: numbers of statfs(2).
    const LOCAL: [i64; 7] =
        [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x2fc1_2fc1, 0xf2f5_2010, 0x794c_7630];
    rustix::fs::statfs(directory).is_ok_and(|found| LOCAL.contains(&found.f_type))
}

#[cfg(test)]
mod tests;
