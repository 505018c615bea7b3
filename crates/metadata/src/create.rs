//! Looking names up and making them.
//!
//! A new inode is born in the shard of its entry, so making a file is one shard's work. Only the
//! directory's attributes may be another service's (`directory`).

use wire::attributes::{ATTRIBUTES_BYTES, flag, mode, spread};
use wire::errno::{Errno, Result};
use wire::hash::NameHash;
use wire::limits::{LINKS_MAX, SHARD_COUNT, SYMLINK_BYTES_MAX};
use wire::name::Name;
use wire::quota::Owner;
use wire::request::{create, walk};
use wire::{Attributes, Inode, Layout, Reply, Request, ShardIndex, Writer};

use crate::acls::Heritage;
use crate::effect::IndexOp;
use crate::keys::Key;
use crate::leases::Grant;
use crate::live::{Ask, Step, Stop};
use crate::open_files::Opening;
use crate::record::Record;
use crate::service::{Service, outcome};

/// Inode numbers are logged as used in blocks of this many.
const INODE_BLOCK: u64 = 4096;

impl Service {
    pub(crate) fn look_up(&mut self, ask: &Ask<'_>, parent: Inode, name: &[u8]) -> Step<()> {
        let key = wire::hash::entry_key(parent, name);
        let Some((inode, mode)) = self.state.entries.get(parent, name) else {
            if ask.header.host == self.config.host && self.may_tell_absent(parent) {
                self.io.index(IndexOp::PutAbsent { directory: parent, key });
                self.note_fresh(parent, key, None);
                self.note_empty(parent);
            }
            return Err(Stop::Refused(Errno::ENOENT));
        };
        self.settle_size(ask, inode)?;
        if ask.header.host == self.config.host {
            self.io.index(IndexOp::PutEntry { key, inode, mode });
            self.note_fresh(parent, key, Some((inode, mode)));
        }
        self.answer_entry(ask, inode, mode);
        Ok(())
    }

    /// Several look-ups in one. What a transaction is about to change, and what another service
    /// knows, ends it: the sender asks for that by itself.
    pub(crate) fn walk(
        &mut self,
        ask: &Ask<'_>,
        directory: Inode,
        from: u8,
        names: &[u8],
    ) -> Step<()> {
        let mut here = None;
        let mut grant = Grant::default();
        if from == walk::DIRECTORY {
            self.check_key(&Key::Inode(directory))?;
            let attributes = self.own_attributes(directory)?;
            self.lease(ask, &mut grant, &attributes, 0);
            here = Some(attributes);
        }
        let mut chain = self.io.buffer();
        here.iter().for_each(|attributes| put(attributes, &mut chain));
        let (mut parent, mut absent) = (directory, 0);
        for name in names.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            // Without attributes it is the first name, which was sent to the shard of its entry.
            let is_ours = here.as_ref().is_none_or(|here: &Attributes| {
                here.is_directory() && self.config.owns(shard_of(here, name))
            });
            let is_known = !self.is_below(parent) && !self.is_to_be_followed(ask, parent, name);
            if !is_ours || !is_known || self.check_entry_key(parent, name).is_err() {
                break;
            }
            let Some((inode, _)) = self.state.entries.get(parent, name) else {
                absent = 1;
                break;
            };
            let Some(node) = self.state.inodes.get(inode) else { break };
            let attributes = node.attributes;
            if !self.is_settled(ask, &attributes) {
                break;
            }
            let Some(node) = self.state.inodes.get(inode) else { break };
            let attributes = node.attributes;
            put(&attributes, &mut chain);
            self.lease(ask, &mut grant, &attributes, wire::hash::entry_key(parent, name));
            (parent, here) = (inode, Some(attributes));
        }
        let Grant { leased, pact, recalls, .. } = grant;
        let reply = Reply::Walked { absent, leased, pact, recalls, chain: &chain };
        self.io.reply(ask.ticket, &reply);
        self.io.recycle(chain);
        Ok(())
    }

    /// Answers with the attributes of an entry's inode, or says where to ask.
    fn answer_entry(&mut self, ask: &Ask<'_>, inode: Inode, mode: u32) {
        match self.state.inodes.get(inode) {
            Some(node) => {
                let attributes = node.attributes;
                if ask.header.host == self.config.host {
                    self.put_index(&attributes);
                }
                self.io.reply(ask.ticket, &Reply::Attributes { attributes });
            }
            None => self.io.reply(ask.ticket, &Reply::Entry { inode, mode }),
        }
    }

    pub(crate) fn create(&mut self, ask: &Ask<'_>, request: &Request<'_>) -> Step<()> {
        let Request::Create { parent, name, mode, device, flags, ref layout, target } = *request
        else {
            return Err(Stop::Refused(Errno::EPROTO));
        };
        let name = Name::parse(name)?;
        if let Some((inode, mode)) = self.state.entries.get(parent, name.bytes()) {
            if flags & create::EXCLUSIVE != 0 {
                return Err(Stop::Refused(Errno::EEXIST));
            }
            self.settle_size(ask, inode)?;
            self.answer_entry(ask, inode, mode);
            return Ok(());
        }
        let directory = self.directory(ask, parent)?;
        let shard = shard_of(&directory, name.bytes());
        self.check_create(ask, &directory, shard, mode)?;
        let device = check_kind(ask, mode, device, target)?;
        let heritage = self.inherit(ask, &directory, mode)?;
        self.draw_inode(ask, owner_in(ask, &directory))?;
        let layout = self.layout_of_child(&directory, mode, layout, shard);
        let inode = self.new_inode(shard);
        let mut attributes = self.new_attributes(ask, &directory, inode, &heritage, layout);
        attributes.device = device;
        attributes.size = target.len() as u64;
        self.note_empty(parent);
        self.put_new(&attributes, target, 0, &heritage.xattrs);
        let kind = mode & mode::TYPE;
        self.put(&Record::PutEntry { parent, name: name.bytes(), inode, mode: kind });
        self.change_tally(parent, directory.layout.spread, 1, i64::from(attributes.is_directory()));
        if flags & create::OPEN != 0 {
            let writes = flags & create::WRITES != 0;
            let opening = Opening { host: ask.header.host, turn: 0, writes, keeps: false };
            self.register_host(ask.hands, inode, opening);
        }
        self.done(ask, outcome::CREATED, inode.0, 0);
        Ok(())
    }

    fn check_create(
        &mut self,
        ask: &Ask<'_>,
        directory: &Attributes,
        shard: ShardIndex,
        mode: u32,
    ) -> Step<()> {
        if !self.config.owns(shard) {
            return Err(Stop::Stale);
        }
        self.check_new(ask, directory)?;
        let is_directory = mode & mode::TYPE == mode::DIRECTORY;
        if is_directory && directory.links >= LINKS_MAX {
            return Err(Stop::Refused(Errno::EMLINK));
        }
        Ok(())
    }

    fn check_new(&mut self, ask: &Ask<'_>, directory: &Attributes) -> Step<()> {
        self.may_change(ask, directory)?;
        if self.state.bytes >= self.config.metadata_bytes_max {
            return Err(Stop::Refused(Errno::ENOSPC));
        }
        Ok(())
    }

    pub(crate) fn create_nameless(
        &mut self,
        ask: &Ask<'_>,
        parent: Inode,
        mode: u32,
        layout: &Layout,
    ) -> Step<()> {
        let directory = self.directory(ask, parent)?;
        self.check_new(ask, &directory)?;
        let mode = mode::REGULAR | mode & !mode::TYPE;
        let heritage = self.inherit(ask, &directory, mode)?;
        self.draw_inode(ask, owner_in(ask, &directory))?;
        let shard = ShardIndex(ask.header.shard);
        let layout = self.layout_of_child(&directory, mode, layout, shard);
        let inode = self.new_inode(shard);
        let mut attributes = self.new_attributes(ask, &directory, inode, &heritage, layout);
        attributes.links = 0;
        self.put_new(&attributes, &[], 1, &heritage.xattrs);
        let opening = Opening { host: ask.header.host, turn: 0, writes: true, keeps: false };
        self.register_host(ask.hands, inode, opening);
        self.done(ask, outcome::CREATED, inode.0, 0);
        Ok(())
    }

    pub(crate) fn put_new(
        &mut self,
        attributes: &Attributes,
        target: &[u8],
        nameless: u8,
        xattrs: &[u8],
    ) {
        self.put(&Record::PutInode {
            attributes: *attributes,
            nameless,
            target,
            contents: &[],
            xattrs,
            tallies: &[],
        });
    }

    fn new_attributes(
        &self,
        ask: &Ask<'_>,
        directory: &Attributes,
        inode: Inode,
        heritage: &Heritage,
        layout: Layout,
    ) -> Attributes {
        let (who, mode) = (&ask.header.who, heritage.mode);
        let is_directory = mode & mode::TYPE == mode::DIRECTORY;
        let hands_down = directory.mode & mode::SET_GID != 0;
        let gid = if hands_down { directory.gid } else { who.gid };
        let mut mode = mode & (mode::TYPE | mode::PERMISSIONS);
        if hands_down && is_directory {
            mode |= mode::SET_GID;
        } else if !is_directory
            && !who.is_privileged()
            && mode & 0o010 != 0
            && !who.is_in_group(gid)
        {
            mode &= !mode::SET_GID;
        }
        let owner = (owner_in(ask, directory), gid);
        let mut new = Attributes::of_new(inode, mode, owner, self.live.now, layout);
        new.extras = heritage.extras;
        match is_directory {
            true => Attributes { parent: directory.inode, links: 2, ..new },
            false => new,
        }
    }

    /// The layout of a new file: what was asked for, within limits, and what the shard decides.
    fn layout_of_child(
        &mut self,
        directory: &Attributes,
        mode: u32,
        wanted: &Layout,
        shard: ShardIndex,
    ) -> Layout {
        let parent = &directory.layout;
        let mut layout = Layout {
            chunk_log2: self.config.chunk_log2_of(wanted.chunk_log2, parent.chunk_log2),
            flags: 0,
            ..*wanted
        };
        if layout.spread > spread::WIDE {
            layout.spread = parent.spread;
        }
        let mut handed_down = flag::POSIX | flag::PINNED;
        match mode & mode::TYPE {
            mode::DIRECTORY => {
                handed_down |= flag::WRITE_BACK;
                layout.place = self.place_of_directory(directory, layout.spread, shard);
            }
            mode::REGULAR => layout.flags = wanted.flags & self.flags_of_new() & !handed_down,
            _ => {}
        }
        layout.flags |= parent.flags & handed_down;
        layout
    }

    /// The flags that who makes a file may give it.
    pub(crate) fn flags_of_new(&self) -> u8 {
        let inline = if self.config.inline_bytes > 0 { flag::INLINE } else { 0 };
        inline | flag::SHORT | flag::POSIX | flag::PINNED
    }

    /// The shard of a new directory's entries: the parent's, or for one in the root the next in
    /// turn (O5).
    pub(crate) fn place_of_directory(
        &mut self,
        parent: &Attributes,
        spread: u8,
        shard: ShardIndex,
    ) -> u16 {
        if parent.layout.spread == spread::WIDE {
            return shard.0;
        }
        if parent.inode != Inode::ROOT || spread == spread::WIDE {
            return parent.layout.place;
        }
        let counters = self.state.shards.get(&shard.0).copied().unwrap_or_default();
        let place_next = (counters.place_next + 1) % SHARD_COUNT;
        let inode_next = counters.inode_next;
        self.put(&Record::PutShard { shard: shard.0, inode_next, place_next });
        counters.place_next
    }

    /// An inode number that was never used.
    fn new_inode(&mut self, shard: ShardIndex) -> Inode {
        let counters = self.state.shards.get(&shard.0).copied().unwrap_or_default();
        // Sequence 0 is no inode and 1 is the root.
        let first = counters.inode_next.max(2);
        let next = self.live.inode_next.entry(shard.0).or_insert(first);
        let sequence = *next;
        *next += 1;
        if sequence >= counters.inode_next {
            let inode_next = sequence + INODE_BLOCK;
            let place_next = counters.place_next;
            self.put(&Record::PutShard { shard: shard.0, inode_next, place_next });
        }
        Inode::new(shard, sequence)
    }
}

/// Whose a file is that somebody makes in a directory.
fn owner_in(ask: &Ask<'_>, directory: &Attributes) -> Owner {
    Owner { uid: ask.header.who.uid, project: directory.project }
}

/// Checks what kind of file is made; its device number.
fn check_kind(ask: &Ask<'_>, mode: u32, device: u64, target: &[u8]) -> Result<u32> {
    let is_link = mode & mode::TYPE == mode::SYMLINK;
    match mode & mode::TYPE {
        mode::CHARACTER | mode::BLOCK if !ask.header.who.is_privileged() => Err(Errno::EPERM),
        mode::CHARACTER | mode::BLOCK if target.is_empty() => {
            u32::try_from(device).map_err(|_| Errno::EINVAL)
        }
        mode::SYMLINK if target.is_empty() => Err(Errno::ENOENT),
        mode::SYMLINK if target.len() > SYMLINK_BYTES_MAX => Err(Errno::ENAMETOOLONG),
        mode::REGULAR | mode::DIRECTORY | mode::FIFO | mode::SOCKET | mode::SYMLINK
            if target.is_empty() != is_link =>
        {
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Puts attributes behind a chain.
fn put(attributes: &Attributes, chain: &mut Vec<u8>) {
    let mut bytes = [0; ATTRIBUTES_BYTES];
    attributes.encode(&mut Writer::new(&mut bytes));
    chain.extend_from_slice(&bytes);
}

/// The shard of the entry of a name.
pub(crate) fn shard_of(directory: &Attributes, name: &[u8]) -> ShardIndex {
    ::placement::locate::entry_shard(directory, NameHash::of(directory.inode, name))
}
