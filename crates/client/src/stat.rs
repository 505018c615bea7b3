//! Looking at files: attributes by path and of open files, access checks.

use core::sync::atomic::Ordering::SeqCst;
use wire::attributes::want;
use wire::errno::{Errno, Result};
use wire::{Attributes, Credentials, Reply, Request};

use crate::errno::by_descriptor;
use crate::layout::File;
use crate::path::{At, Follow, Outcome, PathBuffer};
use crate::request::{To, own_credentials};
use crate::walk::Look;
use crate::{Client, OfdIndex};

/// Device number that files of every instance have: "FB" as major number, which no driver has.
const DEVICE_MAJOR: u64 = 0xfb;

impl Client {
    /// The file that a path names, as its shard knows it.
    pub(crate) fn find<'b>(
        &self,
        at: At<'_>,
        follow: Follow,
        who: &Credentials,
        buffer: &'b mut PathBuffer,
    ) -> Result<Outcome<&'b Attributes>> {
        self.walk(at, follow, Look::Surely, who, buffer)?.and(|walk| walk.existing())
    }

    /// `stat(2)`, `lstat(2)`, `statx(2)`.
    ///
    /// # Errors
    /// As `stat(2)`.
    pub fn stat(
        &self,
        at: At<'_>,
        follow: Follow,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<Attributes>> {
        self.stat_with(at, follow, who, buffer, |attributes| Ok(*attributes))
    }

    /// As `stat`, with attributes that need not be copied.
    ///
    /// # Errors
    /// As `stat`, and what `with` says.
    pub fn stat_with<R>(
        &self,
        at: At<'_>,
        follow: Follow,
        who: &Credentials,
        buffer: &mut PathBuffer,
        with: impl FnOnce(&Attributes) -> Result<R>,
    ) -> Result<Outcome<R>> {
        let mut with = Some(with);
        self.with_walked(at, (follow, Look::Settled), who, buffer, |walk| {
            let found = walk.existing()?;
            let news = if walk.is_settled { None } else { self.news(found)? };
            let with = with.take().ok_or(Errno::EIO)?;
            with(news.as_ref().unwrap_or(found))
        })
    }

    /// `fstat(2)`.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn fstat(&self, ofd: OfdIndex) -> Result<Attributes> {
        let attributes = self.attributes_open(ofd)?;
        Ok(by_descriptor(self.news(&attributes))?.unwrap_or(attributes))
    }

    /// The attributes after the shard was told what this host wrote, so that size and time of
    /// modification are those of the last write, or the last name. `None` if they are as they were.
    fn news(&self, attributes: &Attributes) -> Result<Option<Attributes>> {
        if attributes.is_directory() {
            if self.mount() != 0 {
                return self.news_of_directory(attributes).map(Some);
            }
            if !self.may_have_posts(attributes.inode.shard()) {
                return self.read_again(attributes);
            }
            // Names that came and went change its time and size.
            let request = Request::GetAttributes { inode: attributes.inode };
            let to = To::Shard(attributes.inode.shard());
            return self.call_attributes(to, &request, &own_credentials()).map(Some);
        }
        if !attributes.is_regular() {
            return Ok(None);
        }
        let host = self.host()?;
        let Some(found) = host.vnode_find(attributes.inode) else {
            return self.read_again(attributes);
        };
        if host.vnode(found)?.dirty_end.load(SeqCst) != 0 {
            self.flush_if_open(attributes.inode)?;
        }
        // Told by this call, or by another between our look at the attributes and at the word.
        self.attributes_of(attributes.inode).map(Some)
    }

    /// The same where a mount is served: its own posts are no reason to wait.
    fn news_of_directory(&self, read: &Attributes) -> Result<Attributes> {
        let (inode, last) = (read.inode, self.recent.last(read.inode));
        let at_hand = self.service_of(inode.shard()).and_then(|service| {
            let own = service.by.welcome.session;
            let others = service.by.posts.has_any_of_others(own, service.worker);
            let is_known = last.is_some() || !service.by.posts.has_any(service.worker);
            (!others && is_known).then(|| service.index.inode(inode)).flatten()
        });
        let mut now = match at_hand {
            Some(now) => now,
            None => {
                let to = To::Shard(inode.shard());
                self.call_attributes(to, &Request::GetAttributes { inode }, &own_credentials())?
            }
        };
        if let Some(last) = last.filter(|last| now.changed < *last) {
            (now.modified, now.changed) = (now.modified.max(last), last);
        }
        Ok(now)
    }

    /// Nothing is under way about this file now; but what was when its attributes were read, and came to
    /// its end since, is not in them. Where the shard is on another host they are left as they are.
    fn read_again(&self, read: &Attributes) -> Result<Option<Attributes>> {
        let Some(service) = self.service_of(read.inode.shard()) else { return Ok(None) };
        match service.index.inode(read.inode) {
            // A directory's came by a message, and would again.
            None if read.is_directory() => Ok(None),
            None => self.attributes_of(read.inode).map(Some),
            now => Ok(now),
        }
    }

    /// `access(2)`, `faccessat2(2)`: bits `R_OK`, `W_OK`, `X_OK`, or none for existence. `who` are
    /// the real ids unless `AT_EACCESS` is given.
    ///
    /// # Errors
    /// As `access(2)`.
    pub fn access(
        &self,
        at: At<'_>,
        wanted: u32,
        follow: Follow,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        check_wanted(wanted)?;
        self.find(at, follow, who, buffer)?.and(|attributes| self.permits(attributes, who, wanted))
    }

    /// `faccessat2(2)` with an empty path.
    ///
    /// # Errors
    /// As `access(2)`.
    pub fn faccess(&self, ofd: OfdIndex, wanted: u32, who: &Credentials) -> Result<()> {
        check_wanted(wanted)?;
        self.permits(&self.attributes_open(ofd)?, who, wanted)
    }

    /// A directory that a process may change into.
    ///
    /// # Errors
    /// As `chdir(2)`.
    pub fn find_directory(
        &self,
        at: At<'_>,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<Attributes>> {
        self.find(at, Follow::Yes, who, buffer)?.and(|attributes| {
            if !attributes.is_directory() {
                return Err(Errno::ENOTDIR);
            }
            self.permits(attributes, who, want::EXECUTE)?;
            Ok(*attributes)
        })
    }

    /// `st_dev` of every file of the instance.
    #[must_use]
    pub fn device(&self) -> u64 {
        // As the kernel's `makedev`: major in bits 8 to 19, minor in bits 0 to 7.
        DEVICE_MAJOR << 8 | 1
    }

    /// Bytes that a file takes up, for `st_blocks`: its size, or what its targets say if it may
    /// have holes. One message for each target; the size if one does not answer.
    #[must_use]
    pub fn usage(&self, attributes: &Attributes) -> u64 {
        let size = attributes.size;
        if !attributes.is_regular() || attributes.is_inline() || !attributes.is_sparse() {
            return size;
        }
        self.usage_of(&File::of(attributes), size).unwrap_or(size)
    }

    fn usage_of(&self, file: &File, size: u64) -> Result<u64> {
        if size == 0 {
            return Ok(0);
        }
        let who = own_credentials();
        let mut sum = 0u64;
        self.each_target(file, 0, size, &mut |target| {
            let request = Request::Usage { inode: file.inode };
            self.call(To::Target(target), &request, &who)?.with(|reply| match reply {
                Reply::Number { value } => {
                    sum = sum.saturating_add(value);
                    Ok(())
                }
                _ => Err(Errno::EIO),
            })
        })?;
        Ok(sum)
    }
}

fn check_wanted(wanted: u32) -> Result<()> {
    if wanted & !(want::READ | want::WRITE | want::EXECUTE) == 0 {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}
