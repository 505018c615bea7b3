//! Requests that wait for a reply: a table whose entries are reused.

/// Tokens by request id on the connection. The low half of an id is the index of an entry, the high
/// half counts the uses of that entry, so that a late or forged reply finds nothing.
pub(crate) struct PendingRequests<T> {
    rows: Vec<PendingEntry<T>>,
    free: Vec<u32>,
}

struct PendingEntry<T> {
    uses: u32,
    token: Option<T>,
}

impl<T> Default for PendingRequests<T> {
    fn default() -> PendingRequests<T> {
        PendingRequests { rows: Vec::new(), free: Vec::new() }
    }
}

impl<T> PendingRequests<T> {
    pub(crate) fn count(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    /// Stores a token; returns its id.
    pub(crate) fn put(&mut self, token: T) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.rows.push(PendingEntry { uses: 0, token: None });
            u32::try_from(self.rows.len() - 1).unwrap_or(u32::MAX)
        });
        let Some(row) = self.rows.get_mut(place as usize) else { return u64::MAX };
        row.uses = row.uses.wrapping_add(1);
        row.token = Some(token);
        u64::from(row.uses) << 32 | u64::from(place)
    }

    /// Takes the token of this id; it is found only once.
    pub(crate) fn take(&mut self, id: u64) -> Option<T> {
        let place = id as u32;
        let row = self.rows.get_mut(place as usize)?;
        if u64::from(row.uses) != id >> 32 {
            return None;
        }
        let token = row.token.take()?;
        self.free.push(place);
        Some(token)
    }

    /// Takes all tokens.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        self.free.clear();
        self.rows.drain(..).filter_map(|row| row.token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reply_finds_its_token_once() {
        let mut pending = PendingRequests::default();
        let (one, two) = (pending.put('1'), pending.put('2'));
        assert_eq!((pending.take(two), pending.take(two), pending.count()), (Some('2'), None, 1));
        let three = pending.put('3');
        assert_ne!(two, three);
        for strange in [two, 0, u64::MAX, one + 7, one | 1 << 63] {
            assert_eq!(pending.take(strange), None);
        }
        assert_eq!((pending.take(one), pending.take_all()), (Some('1'), vec!['3']));
        assert_eq!((pending.take(three), pending.count()), (None, 0));
    }
}
