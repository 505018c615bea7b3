//! The configuration of a daemon in the terms of the cores.
//!
//! The values are fields of `DaemonConfig`, checked when it was read; here is only what has to be
//! computed from them.

use ::backing::is_bucket;
use config::choice::{
    Consistency, MetadataSync, Placement, RemoteReads, RemoteWrites, Spread, Wire, WritebackMode,
};
use config::{DaemonConfig, InstanceConfig, ProcessConfig as _};
use data::tiering::demote::DemotionSettings;
use data::tiering::watermarks::{WatermarkOverrides, Watermarks};
use fabric::bulk::Choice;
use net::security::Protection;
use std::ops::Deref;
use std::path::Path;
use wire::attributes::{flag, placement, spread, writeback};
use wire::{DaemonIndex, Layout};

/// Settings of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    config: DaemonConfig,
    /// Transport of file data between daemons.
    pub(crate) transport: Choice,
    /// Descriptor on which readiness is reported.
    pub(crate) ready_fd: Option<i32>,
}

impl Deref for Settings {
    type Target = DaemonConfig;

    fn deref(&self) -> &DaemonConfig {
        &self.config
    }
}

impl Settings {
    /// Reads the configuration file `path`.
    ///
    /// # Errors
    /// It cannot be read, or which field of it is wrong and why.
    pub(crate) fn read(path: &Path, ready_fd: Option<i32>) -> Result<Settings, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
        let settings = text.and_then(|text| Settings::parse(&text, ready_fd));
        settings.map_err(|error| format!("configuration {}: {error}", path.display()))
    }

    fn parse(text: &str, ready_fd: Option<i32>) -> Result<Settings, String> {
        let config = DaemonConfig::from_json(text)?;
        let InstanceConfig { transport, backing, .. } = &config.instance;
        let transport = transport
            .parse()
            .map_err(|()| format!("instance: field transport cannot be {transport:?}"))?;
        if let Some(place) = backing.as_ref().filter(|it| !is_bucket(it) && !it.starts_with('/')) {
            return Err(format!(
                "instance: field backing cannot be {place:?}: give a bucket or an absolute path"
            ));
        }
        Ok(Settings { config, transport, ready_fd })
    }

    /// Protection of connections to other hosts. `encrypted` and `authenticated` are the same: no
    /// code for authentication alone is faster than AES-GCM.
    pub(crate) const fn protection(&self) -> Protection {
        match self.config.instance.wire {
            Wire::Trusted => Protection::Plain,
            Wire::Authenticated | Wire::Encrypted => Protection::Sealed,
        }
    }

    /// Index of this daemon.
    pub(crate) const fn me(&self) -> DaemonIndex {
        DaemonIndex(self.config.index)
    }

    /// Whether services go on at followers of dead daemons.
    pub(crate) const fn has_moving_services(&self) -> bool {
        !self.config.hosts.is_empty() && self.config.instance.followers > 0
    }

    /// Number of workers.
    pub(crate) fn workers(&self) -> usize {
        usize::try_from(self.instance.workers).unwrap_or(1)
    }

    /// log2 of the stripe size.
    pub(crate) fn stripe_log2(&self) -> u8 {
        self.instance.stripe_size.checked_ilog2().and_then(|log2| log2.try_into().ok()).unwrap_or(0)
    }

    /// `wire::attributes::spread` of the root.
    pub(crate) const fn spread(&self) -> u8 {
        match self.config.instance.spread {
            Spread::Home => spread::HOME,
            Spread::Wide => spread::WIDE,
            Spread::Auto => spread::AUTO,
        }
    }

    /// `wire::attributes::placement` of the root.
    pub(crate) const fn placement(&self) -> u8 {
        match self.config.instance.placement {
            Placement::Hash => placement::HASH,
            Placement::Local => placement::LOCAL,
        }
    }

    /// Bits of `wire::attributes::flag` of the root, which its entries inherit.
    pub(crate) fn root_flags(&self) -> u8 {
        let posix = match self.instance.consistency {
            Consistency::Relaxed => 0,
            Consistency::Posix => flag::POSIX,
        };
        if self.instance.backing.is_none() {
            return posix;
        }
        let writeback = match self.instance.writeback {
            WritebackMode::Through => writeback::THROUGH,
            WritebackMode::Close => writeback::CLOSE,
            WritebackMode::Idle => writeback::IDLE,
            WritebackMode::End => writeback::END,
            WritebackMode::Never => writeback::NEVER,
        };
        Layout { flags: posix, ..Layout::default() }.flags_with_writeback(writeback)
    }

    /// True if clients' writes to other hosts, and to files with copies, return before they have arrived.
    pub(crate) fn is_write_behind(&self) -> bool {
        self.instance.remote_writes == RemoteWrites::Behind
    }

    /// True if clients read ahead from other hosts. With copies of files they do not.
    pub(crate) fn has_readahead(&self) -> bool {
        self.instance.remote_reads == RemoteReads::Readahead && !self.has_copies()
    }

    /// True if services have followers that get their changes in batches: `fsync` asks for them.
    pub(crate) fn syncs_in_batches(&self) -> bool {
        self.instance.followers > 0 && self.instance.metadata_sync == MetadataSync::Batch
    }

    /// Longest wait of a write for space. Bounded so that the client gets the reply before its own
    /// timeout.
    pub(crate) fn enospc_timeout_millis(&self) -> u32 {
        let micros = self.instance.enospc_timeout.min(self.instance.timeout / 3 * 2);
        u32::try_from(micros / 1000).unwrap_or(u32::MAX)
    }

    /// How long a backing entry stays valid after a probe.
    pub(crate) fn revalidate_nanos(&self) -> i64 {
        // i64::MAX would mean forever.
        let nanos = i64::try_from(self.instance.backing_revalidate.saturating_mul(1000));
        nanos.unwrap_or(i64::MAX).min(i64::MAX - 1)
    }

    /// True if files that are being written can be written back in part.
    pub(crate) fn has_partials(&self) -> bool {
        self.instance.backing.as_deref().is_some_and(|place| !is_bucket(place))
    }

    /// When extents are demoted.
    pub(crate) fn demotion(&self) -> DemotionSettings {
        if self.instance.demote_low_watermark == Some(0) {
            return DemotionSettings::NEVER;
        }
        let now = self.watermarks().in_force(self.memory);
        DemotionSettings {
            demote_low_watermark_bytes: now.demote_low_watermark_bytes,
            demote_min_watermark_bytes: now.demote_min_watermark_bytes,
            idle_millis: u32::try_from(self.instance.demote_idle_age / 1000).unwrap_or(u32::MAX),
        }
    }

    /// The watermarks, of which some may be adaptive.
    pub(crate) fn watermarks(&self) -> Watermarks {
        let normal = self.instance.demote_low_watermark;
        let forced = if normal == Some(0) { Some(0) } else { self.instance.demote_min_watermark };
        Watermarks::new(WatermarkOverrides { normal, forced })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Key, Sources};

    fn settings(options: &[(Key, &str)]) -> Result<Settings, String> {
        let options = options.iter().map(|(key, text)| (*key, (*text).to_owned()));
        let options = options.chain([(Key::Workers, "2".to_owned())]).collect();
        let sources = Sources { options, ..Sources::default() };
        let instance = config::Settings::resolve(&sources).expect("allowed");
        let config = DaemonConfig {
            index: 1,
            count: 2,
            began: 2,
            local_first: 0,
            local_count: 2,
            run: "/r".into(),
            shm: "/s".into(),
            data: "/d".into(),
            peers: "/r/peers".into(),
            domains: Vec::new(),
            hosts: Vec::new(),
            copies: 1,
            memory: 1 << 20,
            memory_min: None,
            ssd: 0,
            listen: "127.0.0.1:0".parse().expect("an address"),
            owner: 1000,
            has_started: false,
            lost_starts: 0,
            salvage: None,
            instance: InstanceConfig::new(&instance).expect("complete"),
        };
        Settings::parse(&config.to_json().expect("text"), Some(3))
    }

    #[test]
    fn a_configuration_is_converted() {
        let settings = settings(&[(Key::RemoteWrites, "behind")]).expect("right");
        assert_eq!((settings.stripe_log2(), settings.me().0, settings.workers()), (22, 1, 2));
        assert!(settings.is_write_behind() && !settings.has_readahead());
        assert_eq!(settings.enospc_timeout_millis(), 10_000);
    }

    #[test]
    fn backing_entries_are_valid_for_a_while() {
        let mut settings = settings(&[]).expect("right");
        assert_eq!(settings.revalidate_nanos(), 1_000_000_000);
        settings.config.instance.backing_revalidate = u64::MAX;
        assert_eq!(settings.revalidate_nanos(), i64::MAX - 1);
    }

    #[test]
    fn writeback_requires_a_backing_store() {
        let written = |options: &[(Key, &str)]| {
            let flags = settings(options).expect("right").root_flags();
            Layout { flags, ..Layout::default() }.writeback()
        };
        assert_eq!((written(&[]), written(&[(Key::Writeback, "end")])), (0, 0));
        assert_eq!(written(&[(Key::Backing, "/b")]), writeback::CLOSE);
        assert_eq!(written(&[(Key::Backing, "s3://b")]), writeback::CLOSE);
        for (word, value) in writeback::NAMES {
            assert_eq!(written(&[(Key::Backing, "/b"), (Key::Writeback, word)]), value);
        }
        let both = [(Key::Backing, "/b"), (Key::Consistency, "posix")];
        assert_ne!(settings(&both).expect("right").root_flags() & flag::POSIX, 0);
    }

    #[test]
    fn a_relative_backing_directory_is_refused() {
        let error = settings(&[(Key::Backing, "b")]).map(drop).expect_err("relative");
        assert!(error.contains("field backing cannot be \"b\""), "{error}");
    }
}
