//! Extended attributes.

use client::{At, Follow};
use fuse::reply;
use wire::acl;
use wire::codec::Writer;
use wire::errno::{Errno, Result};

use crate::answer::{Request, within};
use crate::serve::Scratch;

impl Request<'_> {
    pub(crate) fn set_xattr(
        &self,
        name: &[u8],
        value: &[u8],
        flags: u32,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let (client, at) = (self.server.client, At::itself(self.node()));
        let (who, path) = (self.who(), &mut scratch.path);
        let mut list = Vec::new();
        let value = match is_list(name) {
            false => value,
            true => {
                let owners = &self.server.owners;
                list.extend_from_slice(value);
                let (users, groups) = (&owners.users, &owners.groups);
                acl::renumber(&mut list, |id| users.outside(id), |id| groups.outside(id));
                &list
            }
        };
        within(client.set_xattr(at, Follow::Never, (name, value), flags, &who, path)?)
    }

    pub(crate) fn get_xattr(
        &self,
        name: &[u8],
        size: u32,
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let (client, at) = (self.server.client, At::itself(self.node()));
        let (who, path) = (self.who(), &mut scratch.path);
        let owners = &self.server.owners;
        take(size, to, |room| {
            let length = client.get_xattr(at, Follow::Never, (name, &mut *room), &who, path)?;
            let length = within(length)?;
            if is_list(name) {
                let list = room.get_mut(..length).unwrap_or_default();
                let (users, groups) = (&owners.users, &owners.groups);
                acl::renumber(list, |id| users.inside(id), |id| groups.inside(id));
            }
            Ok(length)
        })
    }

    pub(crate) fn list_xattr(
        &self,
        size: u32,
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let (client, at) = (self.server.client, At::itself(self.node()));
        let (who, path) = (self.who(), &mut scratch.path);
        take(size, to, |room| within(client.list_xattr(at, Follow::Never, room, &who, path)?))
    }

    pub(crate) fn remove_xattr(&self, name: &[u8], scratch: &mut Scratch) -> Result<()> {
        let (client, at) = (self.server.client, At::itself(self.node()));
        within(client.remove_xattr(at, Follow::Never, name, &self.who(), &mut scratch.path)?)
    }
}

/// True for the name of an access control list, which names users and groups by number.
fn is_list(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

/// The bytes, or their number if size is 0.
fn take(
    size: u32,
    to: &mut Writer<'_>,
    mut read: impl FnMut(&mut [u8]) -> Result<usize>,
) -> Result<()> {
    if size == 0 {
        let count = u32::try_from(read(&mut [])?).map_err(|_| Errno::ERANGE)?;
        reply::count(to, count);
        return Ok(());
    }
    to.fill(size as usize, read)
}
