//! Chains of parents that are read step by step.

use wire::Inode;

/// Notices that a chain of parents comes back to itself. Directories that are moved meanwhile can make
/// it so, although it never was at one moment: it is to be read anew.
pub(crate) struct ParentChain {
    seen: Inode,
    steps: u64,
}

impl ParentChain {
    pub(crate) const fn new() -> ParentChain {
        ParentChain { seen: Inode::NONE, steps: 0 }
    }

    /// The chain goes on at `here`. True if it goes round, at the latest after three rounds.
    pub(crate) fn comes_back(&mut self, here: Inode) -> bool {
        if here == self.seen {
            return true;
        }
        self.steps += 1;
        if self.steps.is_power_of_two() {
            self.seen = here;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_that_goes_round_is_noticed_and_a_long_one_is_not() {
        for begin in [0, 1, 2, 7, 100] {
            for round in [1, 2, 3, 50] {
                let of =
                    |step: u64| if step < begin { step } else { begin + (step - begin) % round };
                let mut chain = ParentChain::new();
                let found = (0..).position(|step| chain.comes_back(Inode(1 + of(step))));
                let found = found.expect("it goes round") as u64;
                assert!(
                    found > begin && found <= 2 * begin.max(1) + 3 * round,
                    "{begin} {round}: {found}"
                );
            }
        }
        let mut chain = ParentChain::new();
        assert!(!(1..100_000).any(|inode| chain.comes_back(Inode(inode))));
    }
}
