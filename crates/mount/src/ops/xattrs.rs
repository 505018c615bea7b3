//! Extended attributes.

use client::{At, Follow};
use core::cell::Cell;
use fuse::reply;
use wire::acl;
use wire::codec::Writer;
use wire::errno::{Errno, Result};

use crate::ops::request::{Request, Scratch, within};
use crate::users::callers;
use crate::users::id_map::NOBODY;

pub(crate) fn set_value(
    request: &Request<'_>,
    name: &[u8],
    value: &[u8],
    flags: u32,
    scratch: &mut Scratch,
) -> Result<()> {
    let (client, at) = (request.server.client, At::itself(request.node()));
    let path = &mut scratch.path;
    let mut list = Vec::new();
    let value = match is_list(name) {
        false => value,
        true => {
            let owners = &request.server.owners;
            list.extend_from_slice(value);
            let are_known = Cell::new(true);
            let of = |id: Option<u32>| {
                are_known.set(are_known.get() && id.is_some());
                id.unwrap_or(NOBODY)
            };
            let (users, groups) = (&owners.users, &owners.groups);
            acl::renumber(&mut list, |id| of(users.known(id)), |id| of(groups.known(id)));
            // Nobody stands for many.
            if !are_known.get() {
                return Err(Errno::EINVAL);
            }
            &list
        }
    };
    callers::as_owner(request, callers::OWNS_ALL, |caller| {
        within(client.set_xattr(at, Follow::Never, (name, value), flags, caller, path)?)
    })
}

pub(crate) fn get_value(
    request: &Request<'_>,
    name: &[u8],
    size: u32,
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let (client, at) = (request.server.client, At::itself(request.node()));
    let (caller, path) = (request.caller(), &mut scratch.path);
    let owners = &request.server.owners;
    take(size, to, |buffer| {
        let length = client.get_xattr(at, Follow::Never, (name, &mut *buffer), &caller, path)?;
        let length = within(length)?;
        if is_list(name) {
            let list = buffer.get_mut(..length).unwrap_or_default();
            let (users, groups) = (&owners.users, &owners.groups);
            acl::renumber(list, |id| users.inside(id), |id| groups.inside(id));
        }
        Ok(length)
    })
}

pub(crate) fn list_names(
    request: &Request<'_>,
    size: u32,
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let (client, at) = (request.server.client, At::itself(request.node()));
    let (caller, path) = (request.caller(), &mut scratch.path);
    take(size, to, |buffer| within(client.list_xattr(at, Follow::Never, buffer, &caller, path)?))
}

pub(crate) fn remove_value(
    request: &Request<'_>,
    name: &[u8],
    scratch: &mut Scratch,
) -> Result<()> {
    let (client, at) = (request.server.client, At::itself(request.node()));
    callers::as_owner(request, callers::OWNS_ALL, |caller| {
        within(client.remove_xattr(at, Follow::Never, name, caller, &mut scratch.path)?)
    })
}

/// True for the name of an access control list, which contains user and group ids.
fn is_list(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

/// Replies with the value, or with its length if `size` is 0.
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
