//! Classes of work, and one of something for each.

/// Classes that share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Recovery, and writeback that others wait for.
    Urgent,
    /// Names, attributes, locks.
    Metadata,
    /// Bytes of files.
    Data,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 3] = [Class::Urgent, Class::Metadata, Class::Data];
}

/// Kinds of work, each with a cost of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Recovery, and writeback that others wait for.
    Urgent,
    /// An operation on names, attributes or locks.
    Metadata,
    /// A read of data.
    Read,
    /// A write of data.
    Write,
}

impl Work {
    /// The class of this kind.
    #[must_use]
    pub const fn class(self) -> Class {
        match self {
            Work::Urgent => Class::Urgent,
            Work::Metadata => Class::Metadata,
            Work::Read | Work::Write => Class::Data,
        }
    }
}

/// One of something for each class.
#[derive(Clone, Debug, Default)]
pub(super) struct PerClass<T> {
    urgent: T,
    metadata: T,
    data: T,
}

impl<T> PerClass<T> {
    pub(super) const fn of(&self, class: Class) -> &T {
        match class {
            Class::Urgent => &self.urgent,
            Class::Metadata => &self.metadata,
            Class::Data => &self.data,
        }
    }

    pub(super) const fn of_mut(&mut self, class: Class) -> &mut T {
        match class {
            Class::Urgent => &mut self.urgent,
            Class::Metadata => &mut self.metadata,
            Class::Data => &mut self.data,
        }
    }

    pub(super) const fn all(&self) -> [&T; 3] {
        [&self.urgent, &self.metadata, &self.data]
    }
}
