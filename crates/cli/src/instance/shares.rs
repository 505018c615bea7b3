//! Shares of jobs on this host, of what they were entitled to.

use crate::instance::host;
use crate::process::query::rules_query;
use crate::state::records::HostRecord;
use crate::state::{directories, records};
use config::printable::printable;
use serde::Serialize;
use serde_json::Value;
use std::time::Duration;

/// A job that gets less than this percentage of its share is named, as `forebay qos show` does.
const ENOUGH_PERCENT: u64 = 80;

/// A job of which requests waited on this host lately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct JobShare {
    /// Its user.
    pub(crate) user: u64,
    /// Its name.
    pub(crate) job: String,
    /// Its part of the ways to other hosts, as a percentage of its share.
    pub(crate) percent_of_share: u64,
}

impl JobShare {
    /// A line for people, if it got too little.
    pub(crate) fn line(&self) -> Option<String> {
        let JobShare { user, job, percent_of_share } = self;
        (*percent_of_share < ENOUGH_PERCENT).then(|| {
            format!(
                "job \"{}\" of user {user} got {percent_of_share} % of its share on this host: others \
                 have min=, or it asks too late: see 'forebay qos show'",
                printable(job)
            )
        })
    }
}

/// The shares of jobs on this host; none if its daemon does not answer.
pub(crate) fn of_host(name: &str, timeout: Duration) -> Vec<JobShare> {
    let ask = || -> Option<Value> {
        let run = directories::run(name).ok()?;
        let here: HostRecord = records::load(&run, host::RECORD).ok()??;
        rules_query(&run.join(format!("d{}.sock", here.first)), "show", timeout)
    };
    ask().map(|shown| shares_in(&shown)).unwrap_or_default()
}

fn shares_in(shown: &Value) -> Vec<JobShare> {
    let jobs = shown.get("jobs").and_then(Value::as_array);
    let share = |one: &Value| {
        Some(JobShare {
            user: one.get("user")?.as_u64()?,
            job: one.get("job")?.as_str()?.to_owned(),
            percent_of_share: one.get("percent_of_share")?.as_u64()?,
        })
    };
    jobs.into_iter().flatten().filter_map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_job_that_gets_too_little_is_named() {
        let shown = json!({ "jobs": [
            { "user": 7, "job": "a\n", "percent_of_share": 79 },
            { "user": 7, "job": "b", "percent_of_share": 80 },
            { "user": 7, "job": "c", "percent_of_share": null },
        ]});
        let shares = shares_in(&shown);
        assert_eq!(shares.len(), 2);
        let line = shares[0].line().expect("a line");
        assert!(line.starts_with("job \"a\\n\" of user 7 got 79 % of its share"), "{line}");
        assert_eq!(shares[1].line(), None);
    }
}
