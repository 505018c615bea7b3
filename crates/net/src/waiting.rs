//! Who waits for the answers to requests: a table whose places are used again.

/// Tokens by the number that their request has on the connection: place, and above it how often
/// the place was used, so that a late or invented answer finds nothing.
pub(crate) struct Waiting<T> {
    rows: Vec<Row<T>>,
    free: Vec<u32>,
}

struct Row<T> {
    uses: u32,
    token: Option<T>,
}

impl<T> Default for Waiting<T> {
    fn default() -> Waiting<T> {
        Waiting { rows: Vec::new(), free: Vec::new() }
    }
}

impl<T> Waiting<T> {
    pub(crate) fn count(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    /// Keeps a token; returns its number.
    pub(crate) fn put(&mut self, token: T) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.rows.push(Row { uses: 0, token: None });
            u32::try_from(self.rows.len() - 1).unwrap_or(u32::MAX)
        });
        let Some(row) = self.rows.get_mut(place as usize) else { return u64::MAX };
        row.uses = row.uses.wrapping_add(1);
        row.token = Some(token);
        u64::from(row.uses) << 32 | u64::from(place)
    }

    /// The token of this number, once.
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

    /// All tokens.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        self.free.clear();
        self.rows.drain(..).filter_map(|row| row.token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_finds_its_token_once() {
        let mut waiting = Waiting::default();
        let (one, two) = (waiting.put('1'), waiting.put('2'));
        assert_eq!((waiting.take(two), waiting.take(two), waiting.count()), (Some('2'), None, 1));
        let three = waiting.put('3');
        assert_ne!(two, three);
        for strange in [two, 0, u64::MAX, one + 7, one | 1 << 63] {
            assert_eq!(waiting.take(strange), None);
        }
        assert_eq!((waiting.take(one), waiting.take_all()), (Some('1'), vec!['3']));
        assert_eq!((waiting.take(three), waiting.count()), (None, 0));
    }
}
