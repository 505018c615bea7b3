//! An instance: the daemons of one host (`host`), all hosts together (`cluster`), and what belongs
//! to them: mounts, the writeback daemon, the recorder of the history, access profiles, memory that
//! nodes lend, what jobs did, rescue after damage.

pub(crate) mod host;

pub(crate) mod inspect;

pub(crate) mod cluster;

pub(crate) mod plan;

pub(crate) mod survivors;

pub(crate) mod mounts;

pub(crate) mod thrashing;

pub(crate) mod shares;

pub(crate) mod writeback;

pub(crate) mod recorder;

pub(crate) mod profile;

pub(crate) mod jobs;

pub(crate) mod overview;

pub(crate) mod exposition;

pub(crate) mod lend;

pub(crate) mod rescue;
