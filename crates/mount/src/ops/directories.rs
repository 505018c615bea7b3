//! Opening and listing directories.

use client::Listed;
use fuse::abi::open as answer;
use fuse::reply;
use wire::codec::Writer;
use wire::errno::Result;

use crate::ops::request::{Request, Scratch};
use crate::ops::{files, lookup, records};

pub(crate) fn open_directory(request: &Request<'_>, flags: u32, to: &mut Writer<'_>) -> Result<()> {
    let directory = files::open_node(request, flags | libc::O_DIRECTORY as u32)?;
    let handle = request.server.handles.add(directory.ofd)?;
    reply::opened(to, handle, answer::NOFLUSH, 0);
    Ok(())
}

pub(crate) fn read_directory(
    request: &Request<'_>,
    (handle, offset, size): (u64, u64, u32),
    with_attributes: bool,
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let (client, directory) = (request.server.client, request.opened(handle)?);
    client.seek(directory, offset.cast_signed(), libc::SEEK_SET as u32)?;
    if offset == 0 {
        records::note_read(request, client.flags(directory)?);
    }
    let path = &mut scratch.path;
    to.fill(size as usize, |buffer| {
        let mut buffer = Writer::new(buffer);
        client.read_directory(directory, size, &mut |listed| {
            let entry = with_attributes.then(|| {
                let is_dot = matches!(listed.name, b"." | b"..");
                // With node 0 the kernel looks the name up when it needs it.
                let found = (!is_dot).then(|| lookup::look_up(request, listed.name, path));
                found.and_then(Result::ok).filter(|found| found.node != 0).unwrap_or_default()
            });
            let Listed { name, inode, mode, next } = *listed;
            let listed = reply::Listed { inode: inode.0, next, kind: mode >> 12, name };
            reply::listed(&mut buffer, entry.as_ref(), &listed)
        })?;
        Ok(buffer.len())
    })
}
