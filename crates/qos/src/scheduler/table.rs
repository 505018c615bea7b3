//! A table whose rows keep their number, and the requests in it as queues.
//!
//! Numbers of rows come from the table itself and never from outside; a wrong one is a bug of the
//! scheduler.

/// No row.
pub(super) const NONE: u32 = u32::MAX;

/// Rows by number; removed ones are used again.
#[derive(Clone, Debug)]
pub(super) struct Table<T> {
    rows: Vec<T>,
    free: Vec<u32>,
}

impl<T> Table<T> {
    pub(super) fn new() -> Table<T> {
        Table { rows: Vec::new(), free: Vec::new() }
    }

    /// Rows in use.
    pub(super) fn used(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    /// Adds a row and returns its number.
    pub(super) fn add(&mut self, row: T) -> u32 {
        if let Some(number) = self.free.pop() {
            *self.row_mut(number) = row;
            return number;
        }
        self.rows.push(row);
        (self.rows.len() - 1) as u32
    }

    /// The row may be used again.
    pub(super) fn release(&mut self, number: u32) {
        debug_assert!(!self.free.contains(&number), "row {number} is released twice");
        self.free.push(number);
    }

    /// A row by a number that came from outside.
    pub(super) fn claimed(&self, number: u32) -> Option<&T> {
        self.rows.get(number as usize)
    }

    #[expect(clippy::indexing_slicing, reason = "the number came from this table")]
    pub(super) fn row(&self, number: u32) -> &T {
        &self.rows[number as usize]
    }

    #[expect(clippy::indexing_slicing, reason = "the number came from this table")]
    pub(super) fn row_mut(&mut self, number: u32) -> &mut T {
        &mut self.rows[number as usize]
    }
}
