//! Looking up and creating names.
//!
//! A new inode is created in the shard of its entry, so creating a file is the work of one shard.
//! Only the directory's attributes may be another service's (`directories::remote_copies`).

use wire::attributes::{ATTRIBUTES_BYTES, flag, mode, spread};
use wire::errno::{Errno, Result};
use wire::hash::NameHash;
use wire::limits::{LINKS_MAX, SYMLINK_BYTES_MAX};
use wire::name::Name;
use wire::quota::Owner;
use wire::request::{create, walk};
use wire::{Attributes, Inode, Layout, Reply, Request, ShardIndex, Writer};

use crate::backing::locations::has_unimported_names;
use crate::backing::revalidate::must_revalidate;
use crate::core::context::Context;
use crate::core::effect::IndexOp;
use crate::core::job::{Call, Step, Stop};
use crate::core::keys::Key;
use crate::core::record::Record;
use crate::core::state::reply_kind;
use crate::directories::leases::LeaseGrant;
use crate::files::Files;
use crate::files::acls::Heritage;
use crate::files::new_inode::{flags_of_new, new_inode, note_empty, place_of_directory, put_new};
use crate::files::open_files::register_host;
use crate::files::openings::Opening;

pub(crate) fn look_up(files: &mut Files, call: &Call<'_>, parent: Inode, name: &[u8]) -> Step<()> {
    let key = wire::hash::entry_key(parent, name);
    let Some((inode, mode)) = files.cx.state.entries.get(parent, name) else {
        if call.header.host == files.cx.config.host
            && files.directories.may_report_absent(&files.cx, parent)
        {
            files.cx.io.index(IndexOp::PutAbsent { directory: parent, key });
            files.cx.note_valid_until(parent, key, None);
            note_empty(&mut files.cx, parent);
        }
        return Err(Stop::Refused(Errno::ENOENT));
    };
    files.settle_size(call, inode)?;
    if call.header.host == files.cx.config.host {
        files.cx.io.index(IndexOp::PutEntry { key, inode, mode });
        files.cx.note_valid_until(parent, key, Some((inode, mode)));
    }
    answer_entry(&mut files.cx, call, inode, mode);
    Ok(())
}

/// Several lookups in one. It ends at a key that a transaction is about to change, and at an
/// entry of another service: the sender requests the rest itself.
pub(crate) fn walk_names(
    files: &mut Files,
    call: &Call<'_>,
    directory: Inode,
    from: u8,
    names: &[u8],
) -> Step<()> {
    let mut here = None;
    let mut grant = LeaseGrant::default();
    if from == walk::DIRECTORY {
        files.cx.check_key(&Key::Inode(directory))?;
        let attributes = files.cx.own_attributes(directory)?;
        files.leases.lease(&mut files.cx, call, &mut grant, &attributes, 0);
        here = Some(attributes);
    }
    let mut chain = files.cx.io.buffer();
    here.iter().for_each(|attributes| put(attributes, &mut chain));
    let (mut parent, mut absent) = (directory, 0);
    for name in names.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        // Without attributes it is the first name, which was sent to the shard of its entry.
        let is_ours = here.as_ref().is_none_or(|here: &Attributes| {
            here.is_directory() && files.cx.config.owns(shard_of(here, name))
        });
        let is_known = !has_unimported_names(&files.cx, parent)
            && !must_revalidate(&files.cx, call, parent, name);
        if !is_ours || !is_known || files.cx.check_entry_key(parent, name).is_err() {
            break;
        }
        let Some((inode, _)) = files.cx.state.entries.get(parent, name) else {
            absent = u8::from(!files.cx.is_elsewhere(parent, name));
            break;
        };
        let Some(node) = files.cx.state.inodes.get(inode) else { break };
        let attributes = node.attributes;
        if !files.is_settled(call, &attributes) {
            break;
        }
        let Some(node) = files.cx.state.inodes.get(inode) else { break };
        let attributes = node.attributes;
        put(&attributes, &mut chain);
        files.leases.lease(
            &mut files.cx,
            call,
            &mut grant,
            &attributes,
            wire::hash::entry_key(parent, name),
        );
        (parent, here) = (inode, Some(attributes));
    }
    let LeaseGrant { leased, term, revocation, .. } = grant;
    let reply = Reply::Walked { absent, leased, term, revocation, chain: &chain };
    files.cx.io.reply(call.ticket, &reply);
    files.cx.io.recycle(chain);
    Ok(())
}

/// Answers with the attributes of an entry's inode, or with the inode alone if another service
/// has it.
fn answer_entry(cx: &mut Context, call: &Call<'_>, inode: Inode, mode: u32) {
    match cx.state.inodes.get(inode) {
        Some(node) => {
            let attributes = node.attributes;
            if call.header.host == cx.config.host {
                cx.put_index(&attributes);
            }
            cx.io.reply(call.ticket, &Reply::Attributes { attributes });
        }
        None => cx.io.reply(call.ticket, &Reply::Entry { inode, mode }),
    }
}

pub(crate) fn create_named(files: &mut Files, call: &Call<'_>, request: &Request<'_>) -> Step<()> {
    let Request::Create { parent, name, mode, device, flags, ref layout, target } = *request else {
        return Err(Stop::Refused(Errno::EPROTO));
    };
    let name = Name::parse(name)?;
    if let Some((inode, mode)) = files.cx.state.entries.get(parent, name.bytes()) {
        if flags & create::EXCLUSIVE != 0 {
            return Err(Stop::Refused(Errno::EEXIST));
        }
        files.settle_size(call, inode)?;
        answer_entry(&mut files.cx, call, inode, mode);
        return Ok(());
    }
    let directory = files.directories.directory(&mut files.cx, call, parent)?;
    let shard = shard_of(&directory, name.bytes());
    check_create(files, call, &directory, shard, mode)?;
    let device = check_kind(call, mode, device, target)?;
    let heritage = files.inherit(call, &directory, mode)?;
    files.grants.draw_inode(&mut files.cx, call, owner_in(call, &directory))?;
    let layout = layout_of_child(files, call, &directory, mode, layout, shard);
    let inode = new_inode(&mut files.cx, shard, (&directory, mode));
    files.pools.note_created(&files.cx, inode, &layout);
    let mut attributes = new_attributes(&files.cx, call, &directory, inode, &heritage, layout);
    attributes.device = device;
    attributes.size = target.len() as u64;
    note_empty(&mut files.cx, parent);
    put_new(&mut files.cx, &attributes, target, 0, &heritage.xattrs);
    let kind = mode & mode::TYPE;
    files.cx.put(&Record::PutEntry { parent, name: name.bytes(), inode, mode: kind });
    files.directories.change_tally(
        &mut files.cx,
        parent,
        directory.layout.spread,
        1,
        i64::from(attributes.is_directory()),
    );
    if flags & create::OPEN != 0 {
        let writes = flags & create::WRITES != 0;
        let opening = Opening { host: call.header.host, open_sequence: 0, writes, caches: false };
        register_host(&mut files.cx, call.host_view, inode, opening);
    }
    files.cx.done(call, reply_kind::CREATED, inode.0, 0);
    Ok(())
}

fn check_create(
    files: &mut Files,
    call: &Call<'_>,
    directory: &Attributes,
    shard: ShardIndex,
    mode: u32,
) -> Step<()> {
    if !files.cx.config.owns(shard) {
        // The request came to a shard of this service, by an older layout of the directory.
        return Err(Stop::Refused(Errno::EREMCHG));
    }
    check_new(files, call, directory)?;
    let is_directory = mode & mode::TYPE == mode::DIRECTORY;
    if is_directory && directory.links >= LINKS_MAX {
        return Err(Stop::Refused(Errno::EMLINK));
    }
    Ok(())
}

fn check_new(files: &mut Files, call: &Call<'_>, directory: &Attributes) -> Step<()> {
    files.may_change(call, directory)?;
    if files.cx.state.bytes >= files.cx.config.metadata_bytes_max {
        return Err(Stop::Refused(Errno::ENOSPC));
    }
    Ok(())
}

pub(crate) fn create_nameless(
    files: &mut Files,
    call: &Call<'_>,
    parent: Inode,
    mode: u32,
    layout: &Layout,
) -> Step<()> {
    let directory = files.directories.directory(&mut files.cx, call, parent)?;
    check_new(files, call, &directory)?;
    let mode = mode::REGULAR | mode & !mode::TYPE;
    let heritage = files.inherit(call, &directory, mode)?;
    files.grants.draw_inode(&mut files.cx, call, owner_in(call, &directory))?;
    let shard = ShardIndex(call.header.shard);
    let layout = layout_of_child(files, call, &directory, mode, layout, shard);
    let inode = new_inode(&mut files.cx, shard, (&directory, mode));
    files.pools.note_created(&files.cx, inode, &layout);
    let mut attributes = new_attributes(&files.cx, call, &directory, inode, &heritage, layout);
    attributes.links = 0;
    put_new(&mut files.cx, &attributes, &[], 1, &heritage.xattrs);
    let opening = Opening { host: call.header.host, open_sequence: 0, writes: true, caches: false };
    register_host(&mut files.cx, call.host_view, inode, opening);
    files.cx.done(call, reply_kind::CREATED, inode.0, 0);
    Ok(())
}

fn new_attributes(
    cx: &Context,
    call: &Call<'_>,
    directory: &Attributes,
    inode: Inode,
    heritage: &Heritage,
    layout: Layout,
) -> Attributes {
    let (caller, mode) = (&call.header.caller, heritage.mode);
    let is_directory = mode & mode::TYPE == mode::DIRECTORY;
    let hands_down = directory.mode & mode::SET_GID != 0;
    let gid = if hands_down { directory.gid } else { caller.gid };
    let mut mode = mode & (mode::TYPE | mode::PERMISSIONS);
    if hands_down && is_directory {
        mode |= mode::SET_GID;
    } else if !is_directory
        && !caller.is_privileged()
        && mode & 0o010 != 0
        && !caller.is_in_group(gid)
    {
        mode &= !mode::SET_GID;
    }
    let owner = (owner_in(call, directory), gid);
    let mut new = Attributes::of_new(inode, mode, owner, cx.now, layout);
    new.extras = heritage.extras;
    match is_directory {
        true => Attributes { parent: directory.inode, links: 2, ..new },
        false => new,
    }
}

/// The layout of a new file: as requested, within limits, completed by the shard.
fn layout_of_child(
    files: &mut Files,
    call: &Call<'_>,
    directory: &Attributes,
    mode: u32,
    requested: &Layout,
    shard: ShardIndex,
) -> Layout {
    let (cx, parent) = (&mut files.cx, &directory.layout);
    let mut layout = Layout {
        pool: parent.pool,
        copies: 0,
        stripe_log2: cx.config.stripe_log2_of(requested.stripe_log2, parent.stripe_log2),
        flags: 0,
        ..*requested
    };
    let may_be_auto = cx.config.spread & spread::AUTO != 0 && !cx.config.backing;
    if !spread::is_known(layout.spread) || !may_be_auto && layout.spread & spread::AUTO != 0 {
        layout.spread = parent.spread;
    }
    layout.spread = spread::of_new(layout.spread);
    let mut inherited = flag::POSIX | flag::PINNED;
    match mode & mode::TYPE {
        mode::DIRECTORY => {
            inherited |= flag::WRITEBACK;
            layout.copies = parent.copies;
            layout.place = place_of_directory(cx, directory, layout.spread, shard);
        }
        mode::REGULAR => {
            layout.flags = requested.flags & flags_of_new(&cx.config) & !inherited;
            layout = cx.config.placed(layout);
            if layout.pool != 0 {
                files.pools.place(cx, call.host_view, &mut layout);
            }
        }
        _ => layout.pool = 0,
    }
    layout.flags |= parent.flags & inherited;
    layout
}

/// The owner of a new file in a directory.
fn owner_in(call: &Call<'_>, directory: &Attributes) -> Owner {
    Owner { uid: call.header.caller.uid, project: directory.project }
}

/// Checks the type of a new file; returns its device number.
fn check_kind(call: &Call<'_>, mode: u32, device: u64, target: &[u8]) -> Result<u32> {
    let is_link = mode & mode::TYPE == mode::SYMLINK;
    match mode & mode::TYPE {
        mode::CHARACTER | mode::BLOCK if !call.header.caller.is_privileged() => Err(Errno::EPERM),
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

/// Appends attributes to a chain.
fn put(attributes: &Attributes, chain: &mut Vec<u8>) {
    let mut bytes = [0; ATTRIBUTES_BYTES];
    attributes.encode(&mut Writer::new(&mut bytes));
    chain.extend_from_slice(&bytes);
}

/// The shard of the entry of a name.
pub(crate) fn shard_of(directory: &Attributes, name: &[u8]) -> ShardIndex {
    ::placement::locate::entry_shard(directory, NameHash::of(directory.inode, name))
}
