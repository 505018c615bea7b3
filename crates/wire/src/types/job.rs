//! Jobs and their transfers: the variables that name a job, a tag and a rank, the job of a request, and
//! the classes of sizes.

use crate::codec::{Malformed, Reader, Writer};

/// Variables with the name of the job; the first that is set counts.
pub const JOB_VARIABLES: [&str; 4] = ["FOREBAY_JOB", "SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID"];

/// The variable with the tag of a process, for rules of `forebay qos`.
pub const TAG_VARIABLE: &str = "FOREBAY_TAG";

/// Variables with the rank of a process; the first that is set counts.
pub const RANK_VARIABLES: [&str; 5] =
    ["SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "FLUX_TASK_RANK"];

/// The job for which a request takes memory of a target, as the daemon of its host says. Only daemons say
/// it: what a session writes there is overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobWord {
    /// User of the process.
    pub user: u32,
    /// A number for the job among those of the user; 0: the request is for no job.
    pub number: u32,
    /// Most dirty bytes that the job may have on a target, in MiB; 0: the usual bound.
    pub dirty_mib_max: u32,
}

impl JobWord {
    /// No job.
    pub const NONE: JobWord = JobWord { user: 0, number: 0, dirty_mib_max: 0 };
    /// No job, but work of the instance itself that others wait for: recovery, and writeback or moves
    /// that free memory that is short. No process has this user, which is `(uid_t) -1`.
    pub const URGENT: JobWord = JobWord { user: u32::MAX, number: 0, dirty_mib_max: 0 };
    /// Length of the encoded form.
    pub const BYTES: usize = 12;

    /// True for `URGENT`.
    #[must_use]
    pub const fn is_urgent(&self) -> bool {
        self.user == JobWord::URGENT.user && self.number == JobWord::URGENT.number
    }

    /// Writes the encoded form: user, number, bound.
    pub fn encode(&self, to: &mut Writer<'_>) {
        to.u32(self.user);
        to.u32(self.number);
        to.u32(self.dirty_mib_max);
    }

    /// Reads the encoded form.
    ///
    /// # Errors
    /// `Malformed` if it is too short.
    pub fn decode(from: &mut Reader<'_>) -> Result<JobWord, Malformed> {
        Ok(JobWord { user: from.u32()?, number: from.u32()?, dirty_mib_max: from.u32()? })
    }
}

/// Number of classes of transfer sizes.
pub const SIZE_CLASSES: usize = 10;

/// Upper bounds of the size classes, in bytes, exclusive; the last class has none. They are the classes
/// of Darshan's reports, but for transfers of exactly a bound: Darshan counts a transfer of 1 MiB with
/// smaller ones, for which no advice would be right.
pub const SIZE_BOUNDS: [u64; SIZE_CLASSES - 1] =
    [100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30];

/// Size class of a transfer of `bytes`.
#[must_use]
pub fn size_class(bytes: u64) -> usize {
    SIZE_BOUNDS.iter().take_while(|bound| bytes >= **bound).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_at_a_bound_is_in_the_class_above() {
        let cases = [
            (0, 0),
            (99, 0),
            (100, 1),
            ((1 << 20) - 1, 4),
            (1 << 20, 5),
            (1 << 30, 9),
            (u64::MAX, 9),
        ];
        for (bytes, class) in cases {
            assert_eq!(size_class(bytes), class, "{bytes} bytes");
        }
    }
}
