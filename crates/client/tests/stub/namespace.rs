//! The stub's files: ordered maps, inline contents as vectors, extents from a counter.

use placement::extent;
use shm::extents::{Arena, ExtentStates, ExtentTable};
use shm::host::{HostSegment, TruncateEpoch};
use shm::index::Index;
use std::collections::BTreeMap;
use wire::attributes::{extra, flag, mode, spread};
use wire::codec::{Field, Writer};
use wire::hash::{NameHash, entry_key};
use wire::reply::{DirectoryEntry, Extent, TRUNCATE_EPOCH_UNKNOWN};
use wire::request::{create, lock, set};
use wire::{Attributes, Errno, Header, Inode, Layout, Reply, Request};

struct Node {
    attributes: Attributes,
    contents: Vec<u8>,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct Lock {
    inode: Inode,
    owner: u64,
    kind: u8,
    start: u64,
    end: u64,
}

/// The namespace and its counters for the tests.
pub(crate) struct Namespace {
    entries: BTreeMap<(Inode, Vec<u8>), Inode>,
    nodes: BTreeMap<Inode, Node>,
    extents: BTreeMap<(Inode, u64), Extent>,
    locks: Vec<Lock>,
    place_next: u64,
    slot_next: u32,
    inode_next: u64,
    pub(crate) place_end: u64,
    index: Index,
    pub(crate) host: HostSegment,
    arena: Arena,
    table: ExtentTable,
    states: ExtentStates,
    /// Number of requests.
    pub(crate) requests: u64,
    /// Number of files that `Reap` freed.
    pub(crate) reaped: u64,
    /// Once a size is reported, another process empties the file and writes as much again.
    pub(crate) is_written_anew: bool,
    /// Once a range for an append is handed out, another process truncates the file to this size.
    pub(crate) truncate_after_append: Option<u64>,
    /// A name in the root that only a message can resolve, and how often its file is replaced
    /// between a lookup and the request that follows.
    replaced: Option<(Vec<u8>, u32)>,
}

type Outcome<T> = Result<T, Errno>;

/// Directories with some names are wide, or have come some way towards that.
fn spread_by_name(name: &[u8], layout: &mut Layout) {
    if name.starts_with(b"wide") {
        layout.spread = spread::WIDE;
    } else if name.starts_with(b"grown") {
        (layout.spread, layout.place) = (spread::after_steps(3), 100);
    }
}

impl Namespace {
    pub(crate) fn new(
        index: Index,
        host: HostSegment,
        arena: Arena,
        table: ExtentTable,
        states: ExtentStates,
    ) -> Namespace {
        let place_end = arena.len();
        let mut namespace = Namespace {
            entries: BTreeMap::new(),
            nodes: BTreeMap::new(),
            extents: BTreeMap::new(),
            locks: Vec::new(),
            place_next: 0,
            slot_next: 0,
            inode_next: 1,
            place_end,
            index,
            host,
            arena,
            table,
            states,
            requests: 0,
            reaped: 0,
            is_written_anew: false,
            truncate_after_append: None,
            replaced: None,
        };
        let layout = Layout { stripe_log2: 20, ..Layout::default() };
        namespace.make(Inode::NONE, mode::DIRECTORY | 0o755, layout, &[], 2);
        namespace
    }

    fn make(
        &mut self,
        parent: Inode,
        mode: u32,
        layout: Layout,
        target: &[u8],
        links: u32,
    ) -> Attributes {
        let inode = Inode(self.inode_next);
        self.inode_next += 1;
        let is_directory = mode & mode::TYPE == mode::DIRECTORY;
        let parent = if is_directory { parent } else { Inode::NONE };
        let size = target.len() as u64;
        let attributes = Attributes {
            inode,
            parent,
            mode,
            links,
            layout,
            size,
            born: 1,
            ..Attributes::default()
        };
        let node = Node {
            attributes,
            contents: Vec::new(),
            target: target.to_vec(),
            xattrs: BTreeMap::new(),
        };
        self.nodes.insert(inode, node);
        self.index.put_inode(&attributes);
        attributes
    }

    fn node(&mut self, inode: Inode) -> Outcome<&mut Node> {
        self.nodes.get_mut(&inode).ok_or(Errno::ESTALE)
    }

    fn show(&mut self, inode: Inode) -> Outcome<Attributes> {
        let attributes = self.node(inode)?.attributes;
        self.index.put_inode(&attributes);
        Ok(attributes)
    }

    fn enter(&mut self, parent: Inode, name: &[u8], inode: Inode) {
        let mode = self.nodes.get(&inode).map_or(0, |node| node.attributes.mode);
        self.entries.insert((parent, name.to_vec()), inode);
        self.index.put_entry(entry_key(parent, name), inode, mode & mode::TYPE);
    }

    fn leave(&mut self, parent: Inode, name: &[u8]) -> Outcome<Inode> {
        let inode = self.entries.remove(&(parent, name.to_vec())).ok_or(Errno::ENOENT)?;
        self.index.put_absent(parent, entry_key(parent, name));
        Ok(inode)
    }

    fn unlink(&mut self, inode: Inode) -> Outcome<()> {
        let node = self.node(inode)?;
        node.attributes.links -= 1;
        if node.attributes.links > 0 {
            return self.show(inode).map(drop);
        }
        self.index.forget_inode(inode);
        if !self.host.mark_deleted(inode) {
            self.free(inode);
        }
        Ok(())
    }

    fn free(&mut self, inode: Inode) {
        self.nodes.remove(&inode);
        self.cut(inode, 0);
    }

    /// Truncates as the worker of a shard and its targets do.
    fn truncate_all(&mut self, inode: Inode, size: u64) {
        self.host.begin_truncate(inode, size);
        self.cut(inode, size);
        self.host.end_truncate(inode);
    }

    fn cut(&mut self, inode: Inode, size: u64) {
        let gone: Vec<Extent> =
            self.extents.range((inode, 0)..=(inode, u64::MAX)).map(|(_, extent)| *extent).collect();
        for extent in gone {
            if extent.start >= size {
                self.extents.remove(&(inode, extent.start));
                self.table.unpublish(extent.slot).expect("a slot");
            } else if size < extent.start + extent.length() {
                let place = extent.location + (size - extent.start);
                let length = extent.start + extent.length() - size;
                self.arena.zero(place, length).expect("in the arena");
            }
        }
    }

    fn map(&mut self, inode: Inode, log2: u8, offset: u64, length: u64, make: bool) -> Vec<Extent> {
        let mut found = Vec::new();
        for span in extent::over(offset, length, log2).take(256) {
            if let Some(extent) = self.extents.get(&(inode, span.start)) {
                found.push(*extent);
                continue;
            }
            if !make {
                continue;
            }
            let place = self.place_next.next_multiple_of(span.length());
            if place + span.length() > self.place_end {
                break;
            }
            let slot = self.slot_next;
            self.slot_next += 1;
            self.place_next = place + span.length();
            let (start, length_log2) = (span.start, span.length_log2);
            let extent = Extent { start, slot, location: place, length_log2, tier: Extent::MEMORY };
            self.states.reset(&extent, 0).expect("a slot");
            self.table.publish(inode, &extent).expect("a slot");
            self.extents.insert((inode, start), extent);
            found.push(extent);
        }
        found
    }

    fn write(&mut self, inode: Inode, offset: u64, bytes: &[u8]) -> Outcome<u64> {
        let node = self.node(inode)?;
        let offset = if offset == u64::MAX { node.contents.len() as u64 } else { offset };
        let end = offset as usize + bytes.len();
        if end > 4096 {
            return Err(Errno::EFBIG);
        }
        if node.contents.len() < end {
            node.contents.resize(end, 0);
        }
        node.contents[offset as usize..end].copy_from_slice(bytes);
        node.attributes.size = node.contents.len() as u64;
        Ok(offset)
    }

    /// Performs a request and sends its reply.
    pub(crate) fn perform(
        &mut self,
        header: &Header,
        request: &Request<'_>,
        answer: &mut dyn FnMut(Reply<'_>),
    ) {
        self.requests += 1;
        self.replace(request);
        if let Err(errno) = self.by_name(header, request, answer) {
            answer(Reply::Refused { errno });
        }
        self.hide_replaced();
    }

    /// From now on replaces a name this many times.
    pub(crate) fn will_replace(&mut self, name: &[u8], times: u32) {
        self.replaced = Some((name.to_vec(), times));
        self.hide_replaced();
    }

    /// How many replacements are left.
    pub(crate) fn replaced_left(&self) -> u32 {
        self.replaced.as_ref().map_or(0, |replaced| replaced.1)
    }

    fn hide_replaced(&self) {
        if let Some((key, inode)) = self.replaced_now() {
            self.index.forget_entry(entry_key(key.0, &key.1));
            self.index.forget_inode(inode);
        }
    }

    fn replaced_now(&self) -> Option<((Inode, Vec<u8>), Inode)> {
        let key = (Inode::ROOT, self.replaced.as_ref()?.0.clone());
        let inode = *self.entries.get(&key)?;
        Some((key, inode))
    }

    /// Replaces the file of the request if one is due.
    fn replace(&mut self, request: &Request<'_>) {
        let Some((key, now)) = self.replaced_now() else { return };
        let (Request::GetAttributes { inode }
        | Request::SetAttributes { inode, .. }
        | Request::SetXattr { inode, .. }
        | Request::ReadLink { inode }) = *request
        else {
            return;
        };
        let Some((_, left)) = self.replaced.as_mut().filter(|replaced| replaced.1 > 0) else {
            return;
        };
        if inode == now {
            *left -= 1;
            let node = self.nodes.remove(&now).expect("it is there");
            let Attributes { mode, layout, .. } = node.attributes;
            self.index.forget_inode(now);
            let new = self.make(Inode::NONE, mode, layout, &node.target, 1).inode;
            self.entries.insert(key, new);
        }
    }

    /// Removes a file but keeps its name.
    pub(crate) fn lose(&mut self, name: &[u8]) {
        let inode = self.entries[&(Inode::ROOT, name.to_vec())];
        self.nodes.remove(&inode);
        self.index.forget_inode(inode);
    }

    fn by_name(
        &mut self,
        header: &Header,
        request: &Request<'_>,
        answer: &mut dyn FnMut(Reply<'_>),
    ) -> Outcome<()> {
        match *request {
            Request::Lookup { parent, name } => {
                let inode = *self.entries.get(&(parent, name.to_vec())).ok_or(Errno::ENOENT)?;
                if self.replaced.as_ref().is_some_and(|(replaced, _)| replaced == name) {
                    answer(Reply::Entry { inode, mode: 0 });
                    return Ok(());
                }
                answer(Reply::Attributes { attributes: self.show(inode)? });
            }
            Request::Create { parent, name, mode, flags, mut layout, target, .. } => {
                if let Some(&inode) = self.entries.get(&(parent, name.to_vec())) {
                    if flags & create::EXCLUSIVE != 0 {
                        return Err(Errno::EEXIST);
                    }
                    answer(Reply::Attributes { attributes: self.show(inode)? });
                    return Ok(());
                }
                spread_by_name(name, &mut layout);
                let attributes = self.make(parent, mode, layout, target, 1);
                self.enter(parent, name, attributes.inode);
                answer(Reply::Created { attributes });
            }
            Request::CreateNameless { mode, layout, .. } => {
                let attributes = self.make(Inode::NONE, mode, layout, &[], 0);
                answer(Reply::Created { attributes });
            }
            Request::Unlink { parent, name } | Request::RemoveDirectory { parent, name } => {
                let inode = *self.entries.get(&(parent, name.to_vec())).ok_or(Errno::ENOENT)?;
                if self.entries.keys().any(|(parent, _)| *parent == inode) {
                    return Err(Errno::ENOTEMPTY);
                }
                self.leave(parent, name)?;
                self.unlink(inode)?;
                answer(Reply::Done {});
            }
            Request::Rename { parent, name, new_parent, new_name, .. } => {
                let inode = self.leave(parent, name)?;
                if let Ok(replaced) = self.leave(new_parent, new_name) {
                    self.unlink(replaced)?;
                }
                self.enter(new_parent, new_name, inode);
                let node = self.node(inode)?;
                if node.attributes.is_directory() {
                    node.attributes.parent = new_parent;
                }
                self.show(inode)?;
                answer(Reply::Done {});
            }
            Request::Link { inode, parent, name } => {
                self.node(inode)?.attributes.links += 1;
                self.show(inode)?;
                self.enter(parent, name, inode);
                answer(Reply::Done {});
            }
            Request::ReadDirectory { directory, after, last, bytes } => {
                self.list(header, directory, (after, last), bytes, answer)?;
            }
            _ => return self.by_inode(request, answer),
        }
        Ok(())
    }

    fn list(
        &mut self,
        header: &Header,
        directory: Inode,
        (after, last): (u64, u64),
        bytes: u32,
        answer: &mut dyn FnMut(Reply<'_>),
    ) -> Outcome<()> {
        self.node(directory)?;
        let is_of_shard = last == NameHash::first_of(header.shard + 1) - 1;
        let mut found: Vec<(NameHash, &[u8], Inode)> = self
            .entries
            .iter()
            .filter(|((parent, _), _)| *parent == directory)
            .map(|((_, name), inode)| (NameHash::of(directory, name), &name[..], *inode))
            .filter(|(hash, ..)| hash.0 > after)
            .collect();
        found.sort();
        // All shards belong to one service here.
        let end = found.partition_point(|found| found.0.0 <= last);
        let next = found.get(end).filter(|_| is_of_shard);
        let next = next.map_or(u16::MAX, |found| found.0.wide_shard().0);
        found.truncate(end);
        let mut buffer = vec![0; bytes as usize];
        let mut writer = Writer::new(&mut buffer);
        let mut more = 0;
        for (hash, name, inode) in found {
            if writer.space_left() < name.len() + 24 {
                more = 1;
                break;
            }
            let mode = self.nodes.get(&inode).map_or(0, |node| node.attributes.mode);
            DirectoryEntry { hash: hash.0, inode, mode: mode & mode::TYPE, name }.put(&mut writer);
        }
        let length = writer.finish().expect("it was looked at");
        answer(Reply::Entries { more, next, entries: &buffer[..length] });
        Ok(())
    }

    fn by_inode(
        &mut self,
        request: &Request<'_>,
        answer: &mut dyn FnMut(Reply<'_>),
    ) -> Outcome<()> {
        match *request {
            Request::GetAttributes { inode } => {
                answer(Reply::Attributes { attributes: self.node(inode)?.attributes });
            }
            Request::SetAttributes { inode, mask, mode, size, modified, .. } => {
                let node = self.node(inode)?;
                if mask & set::MODE != 0 {
                    node.attributes.mode = node.attributes.mode & mode::TYPE | mode;
                }
                if mask & set::MODIFIED != 0 {
                    node.attributes.modified = modified.cast_signed();
                }
                if mask & set::SIZE != 0 {
                    let is_truncated = size < node.attributes.size || mask & set::TRUNCATES != 0;
                    node.attributes.size = size;
                    if node.attributes.is_inline() {
                        node.contents.resize(size as usize, 0);
                    }
                    if is_truncated {
                        self.truncate_all(inode, size);
                    }
                }
                answer(Reply::Attributes { attributes: self.show(inode)? });
            }
            Request::ReadLink { inode } => {
                answer(Reply::Bytes { bytes: &self.node(inode)?.target })
            }
            _ => return self.by_contents(request, answer),
        }
        Ok(())
    }

    fn by_contents(
        &mut self,
        request: &Request<'_>,
        answer: &mut dyn FnMut(Reply<'_>),
    ) -> Outcome<()> {
        match *request {
            Request::ReadInline { inode, offset, length } => {
                let node = self.node(inode)?;
                if !node.attributes.is_inline() {
                    answer(Reply::Moved { attributes: node.attributes });
                    return Ok(());
                }
                let start = (offset as usize).min(node.contents.len());
                let end = (start + length as usize).min(node.contents.len());
                let size = node.contents.len() as u64;
                answer(Reply::Contents { size, bytes: &node.contents[start..end] });
            }
            Request::WriteInline { inode, offset, bytes } => {
                let attributes = self.node(inode)?.attributes;
                if !attributes.is_inline() {
                    answer(Reply::Moved { attributes });
                    return Ok(());
                }
                let placed = self.write(inode, offset, bytes)?;
                let attributes = self.show(inode)?;
                answer(match offset {
                    u64::MAX => Reply::Placed { offset: placed, size: attributes.size },
                    _ => Reply::Attributes { attributes },
                });
            }
            Request::MoveOut { inode } => {
                let node = self.node(inode)?;
                if node.attributes.is_inline() {
                    node.attributes.layout.flags &= !flag::INLINE;
                    let contents = std::mem::take(&mut node.contents);
                    for extent in self.map(inode, 20, 0, contents.len() as u64, true) {
                        let bytes = &contents[extent.start as usize..];
                        self.arena.copy_in(extent.location, bytes).expect("in the arena");
                        let page_bits = self.states.page_bits(&extent, 0).expect("a slot");
                        page_bits.valid.store(1, SEQ);
                        page_bits.claimed.store(1, SEQ);
                    }
                }
                answer(Reply::Attributes { attributes: self.show(inode)? });
            }
            Request::Extend { inode, .. } => {
                self.extend(inode)?;
                answer(Reply::Done {});
            }
            Request::Append { inode, length } => {
                let (offset, truncate_epoch) = self.append(inode, length)?;
                answer(Reply::Range { offset, truncate_epoch });
            }
            Request::Reap { inode } => {
                if self.node(inode)?.attributes.links == 0 && !self.host.mark_deleted(inode) {
                    self.free(inode);
                    self.reaped += 1;
                }
                answer(Reply::Done {});
            }
            _ => return self.others(request, answer),
        }
        Ok(())
    }

    fn append(&mut self, inode: Inode, length: u64) -> Outcome<(u64, u64)> {
        let node = self.node(inode)?;
        let offset = node.attributes.size;
        node.attributes.size += length;
        let truncate_epoch =
            self.host.truncate_epoch(inode).map_or(TRUNCATE_EPOCH_UNKNOWN, TruncateEpoch::number);
        if let Some(size) = self.truncate_after_append.take() {
            self.node(inode)?.attributes.size = size;
            self.truncate_all(inode, size);
        }
        self.show(inode)?;
        Ok((offset, truncate_epoch))
    }

    fn extend(&mut self, inode: Inode) -> Outcome<()> {
        let (size, is_written_anew) = (self.host.unreported(inode), self.is_written_anew);
        let attributes = &mut self.node(inode)?.attributes;
        attributes.size = if is_written_anew { 0 } else { attributes.size.max(size) };
        attributes.modified += 1;
        self.show(inode)?;
        if !is_written_anew {
            self.host.note_reported(inode, size);
        }
        Ok(())
    }

    fn lock(&mut self, request: &Request<'_>, answer: &mut dyn FnMut(Reply<'_>)) -> Outcome<()> {
        let Request::Lock { inode, owner, kind, flags, start, end, .. } = *request else {
            return Err(Errno::EPROTO);
        };
        if flags & lock::TEST == 0 {
            self.locks.retain(|held| held.inode != inode || held.owner != owner);
        }
        let stands = |held: &&Lock| {
            held.inode == inode
                && held.owner != owner
                && held.start <= end
                && start <= held.end
                && (kind == lock::WRITE || held.kind == lock::WRITE)
        };
        let held = self.locks.iter().find(stands);
        match held.filter(|_| kind != lock::UNLOCK) {
            Some(Lock { kind, start, end, .. }) if flags & lock::TEST != 0 => {
                answer(Reply::Held { kind: *kind, pid: 1, start: *start, end: *end });
                return Ok(());
            }
            Some(_) => return Err(Errno::EAGAIN),
            None => {}
        }
        if kind != lock::UNLOCK && flags & lock::TEST == 0 {
            self.locks.push(Lock { inode, owner, kind, start, end });
        }
        answer(Reply::Done {});
        Ok(())
    }

    fn others(&mut self, request: &Request<'_>, answer: &mut dyn FnMut(Reply<'_>)) -> Outcome<()> {
        match *request {
            Request::SetXattr { inode, name, value, .. } => {
                let node = self.node(inode)?;
                node.xattrs.insert(name.to_vec(), value.to_vec());
                node.attributes.extras |= extra::XATTRS;
                let attributes = node.attributes;
                self.index.put_inode(&attributes);
                answer(Reply::Done {});
            }
            Request::GetXattr { inode, name } => {
                let node = self.node(inode)?;
                answer(Reply::Bytes { bytes: node.xattrs.get(name).ok_or(Errno::ENODATA)? });
            }
            Request::Lock { .. } => return self.lock(request, answer),
            Request::Release { inode, owner } => {
                self.locks.retain(|held| held.inode != inode || held.owner != owner);
                answer(Reply::Done {});
            }
            Request::MapExtents { inode, stripe_log2, allocate, offset, length, .. } => {
                let found = self.map(inode, stripe_log2, offset, length, allocate != 0);
                if found.is_empty() && allocate != 0 {
                    return Err(Errno::ENOSPC);
                }
                let mut buffer = vec![0; found.len() * Extent::BYTES];
                let mut writer = Writer::new(&mut buffer);
                found.iter().for_each(|extent| extent.put(&mut writer));
                answer(Reply::Extents { extents: &buffer });
            }
            Request::SeekData { inode, offset, .. } => {
                let at = |extent: &Extent| extent.start + extent.length() > offset;
                let mut of_file = self.extents.range((inode, 0)..=(inode, u64::MAX));
                let found = of_file.find(|(_, extent)| at(extent)).ok_or(Errno::ENXIO)?;
                answer(Reply::Number { value: found.1.start.max(offset) });
            }
            Request::Space {} => answer(Reply::Space {
                memory_total: self.place_end,
                memory_free: self.place_end - self.place_next,
                ssd_total: 0,
                ssd_free: 0,
                files: self.nodes.len() as u64,
            }),
            Request::Open { .. } | Request::Close { .. } | Request::Flush { .. } => {
                answer(Reply::Done {});
            }
            _ => return Err(Errno::ENOSYS),
        }
        Ok(())
    }
}

const SEQ: std::sync::atomic::Ordering = std::sync::atomic::Ordering::SeqCst;
