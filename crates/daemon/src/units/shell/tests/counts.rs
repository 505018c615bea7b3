//! The bytes of units, and those of them that copies have to get yet.

use super::*;

impl Instance {
    /// The unit at its primary, as it was counted last.
    fn counted(&self) -> UnitBytes {
        let counted = self.wires.borrow().counted.get(&(self.primary(), UNIT)).copied();
        counted.flatten().expect("the primary counts")
    }

    /// A unit is counted in each tick, without advice that would change it.
    fn tick_primary(&mut self) {
        self.now += TICK_NANOS;
        let (primary, now) = (usize::from(self.primary()), self.now);
        let shell = self.shells[primary].as_mut().expect("it runs");
        shell.tick(now).expect("space");
    }
}

#[test]
fn bytes_lack_from_the_death_of_a_copy_until_another_one_has_them() {
    let mut instance = Instance::new();
    for sequence in 1..=20 {
        instance.ask(sequence, sequence);
        instance.pass_on();
        instance.done(sequence);
    }
    instance.run(SECOND);
    assert_eq!(instance.counted(), UnitBytes { here: 168, unfilled: 0 });

    let copies = instance.copies();
    let other = copies.into_iter().find(|it| *it != instance.primary()).expect("a second copy");
    instance.kill(other);
    instance.bury(other);
    instance.tick_primary();
    assert_eq!(instance.counted(), UnitBytes { here: 168, unfilled: 168 });

    // The copy that joins has nothing before it was compared.
    let advice = policy::next(&instance.table, &Spaces::default());
    let joins = advice.iter().find_map(|it| match it {
        Advice::Propose(change @ Change::Add { of, .. }) if of.unit == UNIT => Some(*change),
        _ => None,
    });
    instance.table.apply(&joins.expect("a copy is missing")).expect("it has none");
    instance.stand_all();
    instance.tick_primary();
    assert_eq!(instance.counted(), UnitBytes { here: 168, unfilled: 168 });

    instance.run(2 * SECOND);
    assert_eq!(instance.counted(), UnitBytes { here: 168, unfilled: 0 });
    instance.assert_equal_copies(1..=20);
}
