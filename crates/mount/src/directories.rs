//! Open directories and their listings.

use client::Listed;
use fuse::abi::open as answer;
use fuse::reply;
use wire::codec::Writer;
use wire::errno::Result;

use crate::answer::Request;
use crate::serve::Scratch;

impl Request<'_> {
    pub(crate) fn open_directory(&self, flags: u32, to: &mut Writer<'_>) -> Result<()> {
        let directory = self.open_node(flags | libc::O_DIRECTORY as u32)?;
        let handle = self.server.handles.add(directory.ofd)?;
        reply::opened(to, handle, answer::NOFLUSH, 0);
        Ok(())
    }

    pub(crate) fn read_directory(
        &self,
        (handle, offset, size): (u64, u64, u32),
        with_attributes: bool,
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let (client, directory) = (self.server.client, self.opened(handle)?);
        client.seek(directory, offset.cast_signed(), libc::SEEK_SET as u32)?;
        if offset == 0 {
            self.note_read(client.flags(directory)?);
        }
        let path = &mut scratch.path;
        to.fill(size as usize, |room| {
            let mut room = Writer::new(room);
            client.read_directory(directory, size, &mut |listed| {
                let entry = with_attributes.then(|| {
                    let is_dot = matches!(listed.name, b"." | b"..");
                    // Node 0: the kernel asks when somebody wants to know.
                    let found = (!is_dot).then(|| self.look(listed.name, path));
                    found.and_then(Result::ok).filter(|found| found.node != 0).unwrap_or_default()
                });
                let Listed { name, inode, mode, next } = *listed;
                let listed = reply::Listed { inode: inode.0, next, kind: mode >> 12, name };
                reply::listed(&mut room, entry.as_ref(), &listed)
            })?;
            Ok(room.len())
        })
    }
}
