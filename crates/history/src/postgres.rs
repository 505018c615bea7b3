//! A store of a site: a PostgreSQL server, named by an address such as `postgres://forebay@db/history`.
//!
//! The tables are those of `sqlite`, in the schema `forebay`, with the role that wrote a row in each.
//! The role that makes them, an administrator's, sees all rows; any other sees its own (row security).
//! Seconds, minutes and events have a partition for each day, so that old ones go without a scan: the
//! owner of the tables drops them. Samples and events come by COPY, into a table of the session first,
//! because COPY takes no row twice.
//!
//! *Invariant:* a password is in no argument, log or error: it comes from a file that only its owner
//! reads (`PGPASSFILE`, `~/.pgpass`), in the form of libpq. An address with one is refused.
//!
//! A password is proven, not sent (SCRAM). TLS is in `tls`.

mod tls;

use crate::bounded::BoundedStore;
use crate::error::HistoryError;
use crate::pass_file;
use crate::postgres::tls::{Tls, TlsTerms};
use crate::record::{Advice, EventRecord, FIGURES, JobRun, LoadSample, Record, Span};
use crate::store::{Query, Retention, SECONDS_KEPT_MS, Store, integer, minute_sums, natural};
use postgres::config::Host;
use postgres::error::SqlState;
use postgres::{Client, Config, Row, Transaction};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// How long a connection, a statement and a lost server are waited for.
const CONNECT_TIME: Duration = Duration::from_secs(5);
const STATEMENT_TIME: Duration = Duration::from_secs(10);
/// Longest wait for any answer: a server may accept a connection and say nothing.
const ANSWER_TIME: Duration = Duration::from_secs(15);
const _: () = assert!(ANSWER_TIME.as_secs() > STATEMENT_TIME.as_secs());
const DAY_MS: u64 = 86_400_000;
/// Serializes the making of tables, and of partitions: "forebay" in ASCII.
const LOCK: i64 = 0x0066_6f72_6562_6179;

/// The tables, partitions and rights. `make_day` runs as their owner: other roles need partitions, too.
const SCHEMA: &str = "
CREATE SCHEMA forebay;
CREATE TABLE forebay.version (version BIGINT NOT NULL);
INSERT INTO forebay.version VALUES (1);
CREATE TABLE forebay.jobs (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner TEXT NOT NULL DEFAULT current_user,
    instance TEXT NOT NULL, job TEXT NOT NULL, begin_ms BIGINT NOT NULL,
    user_name TEXT NOT NULL, command TEXT NOT NULL, seconds DOUBLE PRECISION NOT NULL,
    is_complete BOOLEAN NOT NULL, is_sampled BOOLEAN NOT NULL,
    hosts BIGINT NOT NULL, ranks BIGINT NOT NULL, operations BIGINT NOT NULL,
    bytes_read BIGINT NOT NULL, bytes_written BIGINT NOT NULL, io_seconds DOUBLE PRECISION NOT NULL,
    advice TEXT NOT NULL, profile TEXT NOT NULL,
    UNIQUE (owner, instance, job, begin_ms)
);
CREATE INDEX ON forebay.jobs (begin_ms);
CREATE INDEX ON forebay.jobs (job, begin_ms);
CREATE TABLE forebay.events (
    owner TEXT NOT NULL DEFAULT current_user, at_ms BIGINT NOT NULL,
    instance TEXT NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL
) PARTITION BY RANGE (at_ms);
CREATE INDEX ON forebay.events USING brin (at_ms);
CREATE FUNCTION forebay.make_day(of TEXT, day BIGINT) RETURNS VOID
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    IF of NOT IN ('seconds', 'minutes', 'events') OR day NOT BETWEEN 0 AND 100000 THEN
        RAISE EXCEPTION 'no such partition';
    END IF;
    EXECUTE format(
        'CREATE TABLE IF NOT EXISTS forebay.%I PARTITION OF forebay.%I FOR VALUES FROM (%s) TO (%s)',
        of || '_' || day, of, day * 86400000, (day + 1) * 86400000);
END $$;
";

/// The rights of all roles that may connect: their own rows.
const RIGHTS: &str = "
GRANT USAGE ON SCHEMA forebay TO PUBLIC;
GRANT SELECT ON forebay.version TO PUBLIC;
";

/// A PostgreSQL server.
struct PostgresStore {
    client: Client,
    retention: Retention,
    /// The days whose partitions are there.
    days: Vec<(&'static str, u64)>,
}

/// True if a place is the address of a server.
#[must_use]
pub fn is_address(place: &str) -> bool {
    place.starts_with("postgres://") || place.starts_with("postgresql://")
}

/// The address as it may be shown; without what could be a password.
#[must_use]
pub fn shown(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("postgres", ""));
    let (rest, _) = rest.split_once('?').unwrap_or((rest, ""));
    match rest.rsplit_once('@') {
        Some((user, host)) => {
            let (user, _) = user.split_once(':').unwrap_or((user, ""));
            format!("{scheme}://{user}@{host}")
        }
        None => format!("{scheme}://{rest}"),
    }
}

/// The address, read.
///
/// # Errors
/// It is no address, or has a password.
fn config_of(address: &str) -> Result<(Config, TlsTerms), HistoryError> {
    let (address, terms) = tls::terms(address)?;
    // An error of the parser could repeat a part of the address.
    let unreadable = "it is no address such as postgres://USER@HOST/DATABASE";
    let mut config: Config =
        address.parse().map_err(|_| HistoryError::Other(unreadable.to_owned()))?;
    config.ssl_mode(terms.mode);
    if config.get_password().is_some() {
        let why =
            "a password belongs in ~/.pgpass or the file that PGPASSFILE names, not in the address";
        return Err(HistoryError::Other(why.to_owned()));
    }
    Ok((config, terms))
}

/// Checks an address, without connecting.
///
/// # Errors
/// It is no address, or has a password.
pub fn check(address: &str) -> Result<(), HistoryError> {
    config_of(address).map(|_| ())
}

/// Connects to the server at `address`, and makes the tables if there are none.
///
/// # Errors
/// It cannot be reached, refuses, does not answer, or has tables of a newer version.
pub fn open(address: &str, retention: Retention) -> Result<BoundedStore, HistoryError> {
    let address = address.to_owned();
    let connect = move || PostgresStore::connect(&address, retention, pass_file::path());
    BoundedStore::open(ANSWER_TIME, connect)
}

impl PostgresStore {
    fn connect(
        address: &str,
        retention: Retention,
        passwords: Option<PathBuf>,
    ) -> Result<PostgresStore, HistoryError> {
        let (mut config, terms) = config_of(address)?;
        let user =
            config.get_user().map(str::to_owned).or_else(pass_file::login).unwrap_or_default();
        config.user(&user);
        let host = match config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            _ => "localhost".to_owned(),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let database = config.get_dbname().unwrap_or(&user).to_owned();
        if let Some(path) = passwords {
            let port = port.to_string();
            let connection = [host.as_str(), &port, &database, &user];
            let found = pass_file::find(&path, connection).map_err(HistoryError::Other)?;
            if let Some(password) = found {
                config.password(password);
            }
        }
        config.connect_timeout(CONNECT_TIME).tcp_user_timeout(STATEMENT_TIME);
        config.application_name("forebay");
        let millis = STATEMENT_TIME.as_millis();
        config.options(&format!("-c statement_timeout={millis} -c lock_timeout={millis}"));
        let client = config.connect(Tls::new(&terms)?).map_err(|error| error_of(&error))?;
        let mut store = PostgresStore { client, retention, days: Vec::new() };
        store.prepare().map_err(|error| error_of(&error))??;
        Ok(store)
    }

    fn prepare(&mut self) -> Result<Result<(), HistoryError>, postgres::Error> {
        let mut change = self.client.transaction()?;
        let is_there = |change: &mut Transaction<'_>| -> Result<bool, postgres::Error> {
            let row = change.query_one("SELECT to_regclass('forebay.version') IS NOT NULL", &[])?;
            row.try_get(0)
        };
        if !is_there(&mut change)? {
            change.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
            if !is_there(&mut change)? {
                change.batch_execute(&schema())?;
            }
        }
        let row = change.query_one("SELECT version FROM forebay.version", &[])?;
        let version: i64 = row.try_get(0)?;
        change.batch_execute(&incoming())?;
        change.commit()?;
        Ok(if version > 1 { Err(HistoryError::Newer(version)) } else { Ok(()) })
    }

    /// Makes the partition of a day of a table, if this session has not seen it.
    fn make_day(&mut self, table: &'static str, at_ms: u64) -> Result<(), postgres::Error> {
        let day = at_ms / DAY_MS;
        if self.days.contains(&(table, day)) {
            return Ok(());
        }
        let mut change = self.client.transaction()?;
        change.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
        change.execute("SELECT forebay.make_day($1, $2)", &[&table, &integer(day)])?;
        change.commit()?;
        self.days.push((table, day));
        Ok(())
    }

    fn write_all(&mut self, records: &[Record]) -> Result<(), postgres::Error> {
        for record in records {
            match record {
                Record::Load(sample) => self.make_day("seconds", sample.at_ms)?,
                Record::Event(event) => self.make_day("events", event.at_ms)?,
                Record::Run(_) => {}
            }
        }
        let mut change = self.client.transaction()?;
        let (mut loads, mut events) = (String::new(), String::new());
        for record in records {
            match record {
                Record::Run(run) => insert_run(&mut change, run)?,
                Record::Load(sample) => push_load(&mut loads, sample),
                Record::Event(event) => {
                    let texts = [&event.instance, &event.kind, &event.text].map(|it| copied(it));
                    let [instance, kind, text] = texts;
                    // A string takes any text.
                    let _ = writeln!(events, "{}\t{instance}\t{kind}\t{text}", event.at_ms);
                }
            }
        }
        let figures = FIGURES.join(", ");
        if !loads.is_empty() {
            let columns = format!("instance, job, at_ms, samples, {figures}");
            copy(&mut change, &format!("COPY incoming ({columns}) FROM STDIN"), &loads)?;
            change.batch_execute(&format!(
                "INSERT INTO forebay.seconds ({columns}) SELECT {columns} FROM incoming \
                 ON CONFLICT DO NOTHING"
            ))?;
        }
        if !events.is_empty() {
            let columns = "at_ms, instance, kind, text";
            copy(&mut change, &format!("COPY incoming_events ({columns}) FROM STDIN"), &events)?;
            change.batch_execute(&format!(
                "INSERT INTO forebay.events ({columns}) SELECT {columns} FROM incoming_events"
            ))?;
        }
        change.commit()
    }

    fn tidy_all(&mut self, now_ms: u64) -> Result<(), postgres::Error> {
        let minute = now_ms - now_ms % 60_000;
        let oldest_second = minute.saturating_sub(SECONDS_KEPT_MS);
        let oldest = now_ms.saturating_sub(self.retention.keep_ms);
        // The seconds that are rolled up are of these days.
        for at_ms in [oldest_second, minute.saturating_sub(60_000)] {
            self.make_day("minutes", at_ms)?;
        }
        let figures = FIGURES.join(", ");
        let sums = minute_sums();
        let set = FIGURES.map(|name| format!("{name} = EXCLUDED.{name}")).join(", ");
        let mut change = self.client.transaction()?;
        change.execute(
            &format!(
                "INSERT INTO forebay.minutes (owner, instance, job, at_ms, samples, {figures}) \
                 SELECT owner, instance, job, at_ms / 60000 * 60000, count(*), {sums} \
                 FROM forebay.seconds WHERE at_ms >= $1 AND at_ms < $2 \
                 GROUP BY owner, instance, job, at_ms / 60000 \
                 ON CONFLICT (owner, instance, job, at_ms) \
                 DO UPDATE SET samples = EXCLUDED.samples, {set}"
            ),
            &[&integer(oldest_second), &integer(minute)],
        )?;
        change.execute("DELETE FROM forebay.jobs WHERE begin_ms < $1", &[&integer(oldest)])?;
        change.commit()?;
        self.drop_days("seconds", oldest_second)?;
        self.drop_days("minutes", oldest)?;
        self.drop_days("events", oldest)
    }

    /// Drops the partitions of the days before a time, if the role owns the tables.
    fn drop_days(&mut self, table: &'static str, oldest_ms: u64) -> Result<(), postgres::Error> {
        let before = oldest_ms / DAY_MS;
        let rows = self.client.query(
            "SELECT relname::TEXT FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid \
             WHERE inhparent = to_regclass('forebay.' || $1) \
             AND pg_get_userbyid(relowner) = current_user",
            &[&table],
        )?;
        for row in rows {
            let name: String = row.try_get(0)?;
            let day = name.strip_prefix(table).and_then(|rest| rest.strip_prefix('_'));
            let Some(day) = day.and_then(|day| day.parse::<u64>().ok()) else { continue };
            if day < before {
                self.client
                    .batch_execute(&format!("DROP TABLE IF EXISTS forebay.{table}_{day}"))?;
                self.days.retain(|known| *known != (table, day));
            }
        }
        Ok(())
    }
}

impl Store for PostgresStore {
    fn write(&mut self, records: &[Record]) -> Result<(), HistoryError> {
        self.write_all(records).map_err(|error| error_of(&error))
    }

    fn tidy(&mut self, now_ms: u64) -> Result<(), HistoryError> {
        self.tidy_all(now_ms).map_err(|error| error_of(&error))
    }

    fn runs(&mut self, query: &Query) -> Result<Vec<JobRun>, HistoryError> {
        let rows = self.client.query(
            "SELECT instance, job, user_name, command, begin_ms, seconds, is_complete, is_sampled, \
             hosts, ranks, operations, bytes_read, bytes_written, io_seconds, advice \
             FROM forebay.jobs WHERE begin_ms >= $1 AND ($2::TEXT IS NULL OR instance = $2) \
             AND ($3::TEXT IS NULL OR job = $3) ORDER BY begin_ms DESC, id DESC LIMIT $4",
            &[&integer(query.since_ms), &query.instance, &query.job, &query.limit()],
        );
        read(rows, run)
    }

    fn profile(&mut self, job: &str, back: usize) -> Result<Option<String>, HistoryError> {
        let back = i64::try_from(back).unwrap_or(i64::MAX);
        let sql = "SELECT profile FROM forebay.jobs WHERE job = $1 \
                   ORDER BY begin_ms DESC, id DESC LIMIT 1 OFFSET $2";
        let rows = self.client.query(sql, &[&job, &back]);
        Ok(read(rows, |row| row.try_get(0))?.into_iter().next())
    }

    fn load(&mut self, span: Span, query: &Query) -> Result<Vec<LoadSample>, HistoryError> {
        let sql = format!(
            "SELECT instance, job, at_ms, samples, {} FROM forebay.{} WHERE at_ms >= $1 AND \
             ($2::TEXT IS NULL OR instance = $2) AND job = $3 ORDER BY at_ms DESC LIMIT $4",
            FIGURES.join(", "),
            span.table()
        );
        let job = query.job.clone().unwrap_or_default();
        let since = integer(query.since_ms);
        read(self.client.query(&sql, &[&since, &query.instance, &job, &query.limit()]), load_sample)
    }

    fn events(&mut self, query: &Query) -> Result<Vec<EventRecord>, HistoryError> {
        let rows = self.client.query(
            "SELECT instance, at_ms, kind, text FROM forebay.events WHERE at_ms >= $1 AND \
             ($2::TEXT IS NULL OR instance = $2) ORDER BY at_ms DESC LIMIT $3",
            &[&integer(query.since_ms), &query.instance, &query.limit()],
        );
        read(rows, |row| {
            Ok(EventRecord {
                instance: row.try_get(0)?,
                at_ms: number(row, 1)?,
                kind: row.try_get(2)?,
                text: row.try_get(3)?,
            })
        })
    }
}

fn schema() -> String {
    let figures = FIGURES.map(|name| format!("{name} DOUBLE PRECISION")).join(", ");
    let mut sql = SCHEMA.to_owned();
    for table in [Span::Second.table(), Span::Minute.table()] {
        // A string takes any text.
        let _ = write!(
            sql,
            "CREATE TABLE forebay.{table} (owner TEXT NOT NULL DEFAULT current_user, \
             instance TEXT NOT NULL, job TEXT NOT NULL, at_ms BIGINT NOT NULL, \
             samples BIGINT NOT NULL, {figures}, PRIMARY KEY (owner, instance, job, at_ms)) \
             PARTITION BY RANGE (at_ms); \
             CREATE INDEX ON forebay.{table} USING brin (at_ms);"
        );
    }
    sql += RIGHTS;
    for table in ["jobs", "seconds", "minutes", "events"] {
        let _ = write!(
            sql,
            "ALTER TABLE forebay.{table} ENABLE ROW LEVEL SECURITY; \
             CREATE POLICY own ON forebay.{table} USING (owner = current_user); \
             GRANT SELECT, INSERT, UPDATE, DELETE ON forebay.{table} TO PUBLIC;"
        );
    }
    sql
}

/// The tables of the session into which COPY writes.
fn incoming() -> String {
    let figures = FIGURES.map(|name| format!("{name} DOUBLE PRECISION")).join(", ");
    format!(
        "CREATE TEMP TABLE IF NOT EXISTS incoming (instance TEXT, job TEXT, at_ms BIGINT, \
         samples BIGINT, {figures}) ON COMMIT DELETE ROWS; \
         CREATE TEMP TABLE IF NOT EXISTS incoming_events (at_ms BIGINT, instance TEXT, kind TEXT, \
         text TEXT) ON COMMIT DELETE ROWS;"
    )
}

fn copy(change: &mut Transaction<'_>, sql: &str, rows: &str) -> Result<(), postgres::Error> {
    let mut writer = change.copy_in(sql)?;
    // A connection that is lost is the error of `finish`.
    let _ = writer.write_all(rows.as_bytes());
    writer.finish().map(|_| ())
}

fn push_load(rows: &mut String, sample: &LoadSample) {
    let [instance, job] = [&sample.instance, &sample.job].map(|it| copied(it));
    // A string takes any text.
    let _ = write!(rows, "{instance}\t{job}\t{}\t{}", sample.at_ms, sample.samples);
    for figure in sample.figures {
        let _ = match figure {
            Some(figure) => write!(rows, "\t{figure}"),
            None => write!(rows, "\t\\N"),
        };
    }
    rows.push('\n');
}

/// A text in a row of COPY. The server takes no NUL.
fn copied(text: &str) -> String {
    let mut row = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '\\' => row.push_str("\\\\"),
            '\t' => row.push_str("\\t"),
            '\n' => row.push_str("\\n"),
            '\r' => row.push_str("\\r"),
            '\0' => row.push('?'),
            other => row.push(other),
        }
    }
    row
}

fn insert_run(change: &mut Transaction<'_>, run: &JobRun) -> Result<(), postgres::Error> {
    let advice = serde_json::to_string(&run.advice).unwrap_or_default();
    let texts = [&run.instance, &run.job, &run.user, &run.command, &advice, &run.profile];
    let [instance, job, user, command, advice, profile] = texts.map(|it| it.replace('\0', "?"));
    change.execute(
        "INSERT INTO forebay.jobs (instance, job, begin_ms, user_name, command, seconds, is_complete, \
         is_sampled, hosts, ranks, operations, bytes_read, bytes_written, io_seconds, advice, profile) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) \
         ON CONFLICT (owner, instance, job, begin_ms) DO UPDATE SET user_name = $4, command = $5, \
         seconds = $6, is_complete = $7, is_sampled = $8, hosts = $9, ranks = $10, operations = $11, \
         bytes_read = $12, bytes_written = $13, io_seconds = $14, advice = $15, profile = $16",
        &[
            &instance,
            &job,
            &integer(run.begin_ms),
            &user,
            &command,
            &run.seconds,
            &run.is_complete,
            &run.is_sampled,
            &integer(run.hosts),
            &integer(run.ranks),
            &integer(run.operations),
            &integer(run.bytes_read),
            &integer(run.bytes_written),
            &run.io_seconds,
            &advice,
            &profile,
        ],
    )?;
    Ok(())
}

fn run(row: &Row) -> Result<JobRun, postgres::Error> {
    let advice: String = row.try_get(14)?;
    let advice: Vec<Advice> = serde_json::from_str(&advice).unwrap_or_default();
    Ok(JobRun {
        instance: row.try_get(0)?,
        job: row.try_get(1)?,
        user: row.try_get(2)?,
        command: row.try_get(3)?,
        begin_ms: number(row, 4)?,
        seconds: row.try_get(5)?,
        is_complete: row.try_get(6)?,
        is_sampled: row.try_get(7)?,
        hosts: number(row, 8)?,
        ranks: number(row, 9)?,
        operations: number(row, 10)?,
        bytes_read: number(row, 11)?,
        bytes_written: number(row, 12)?,
        io_seconds: row.try_get(13)?,
        advice,
        profile: String::new(),
    })
}

fn load_sample(row: &Row) -> Result<LoadSample, postgres::Error> {
    let mut sample = LoadSample {
        instance: row.try_get(0)?,
        job: row.try_get(1)?,
        at_ms: number(row, 2)?,
        samples: number(row, 3)?,
        ..LoadSample::default()
    };
    for (place, figure) in sample.figures.iter_mut().enumerate() {
        *figure = row.try_get(place + 4)?;
    }
    Ok(sample)
}

fn read<T>(
    rows: Result<Vec<Row>, postgres::Error>,
    each: impl Fn(&Row) -> Result<T, postgres::Error>,
) -> Result<Vec<T>, HistoryError> {
    let read = rows.and_then(|rows| rows.iter().map(each).collect());
    read.map_err(|error| error_of(&error))
}

fn number(row: &Row, place: usize) -> Result<u64, postgres::Error> {
    row.try_get::<_, i64>(place).map(natural)
}

fn error_of(error: &postgres::Error) -> HistoryError {
    let code = error.code();
    if code == Some(&SqlState::DISK_FULL) {
        return HistoryError::DeviceFull;
    }
    if [&SqlState::QUERY_CANCELED, &SqlState::LOCK_NOT_AVAILABLE]
        .into_iter()
        .any(|it| code == Some(it))
    {
        return HistoryError::Busy;
    }
    let why = match error.as_db_error() {
        Some(refused) => refused.message().to_owned(),
        None => {
            let source = std::error::Error::source(error);
            source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
        }
    };
    HistoryError::Other(why.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests;
