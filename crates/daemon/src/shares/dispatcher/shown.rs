//! The view of people on the rules in force, and on what jobs get under them.

use crate::shares::accounts::JobAccount;
use crate::shares::dispatcher::Dispatcher;
use crate::shares::rule_set::RuleSet;
use config::printable::printable;
use qos::rules::Rule;
use serde_json::{Value, json};

/// Most jobs of a user in an answer to it: the kernel of a mount carries 15 KiB.
const OWN_ROWS_MAX: usize = 16;

/// The user of `by USER show`.
pub(in crate::shares) fn user_of_show(text: &str) -> Option<u32> {
    text.strip_prefix("by ")?.strip_suffix(" show")?.parse().ok()
}

fn shown_rule(rule: &Rule) -> Value {
    let text = rule.to_string();
    let text = text.split_once("start ").map_or(text.as_str(), |(_, text)| text);
    match rule.own_user() {
        Some(user) => json!({ "name": rule.name(), "rule": text, "user": user }),
        None => json!({ "name": rule.name(), "rule": text }),
    }
}

impl Dispatcher {
    /// Rules, and the jobs whose requests this daemon started lately, as JSON.
    pub(super) fn show(&self) -> String {
        let rules: Vec<Value> = self.rules.rules.all_rules().iter().map(shown_rule).collect();
        json!({
            "version": self.rules.version,
            "rules": rules,
            "warnings": self.warnings(),
            "waiting": self.waiting.len(),
            "jobs": self.shown_jobs(&|account| !account.is_own),
            "own": self.shown_jobs(&|account| account.is_own),
        })
        .to_string()
    }

    /// The same for a user without the rights of the instance's owner: its own rules and jobs.
    pub(super) fn show_own(&self, user: u32) -> String {
        let all = self.rules.rules.all_rules().iter();
        let rules: Vec<Value> =
            all.filter(|rule| rule.own_user() == Some(user)).map(shown_rule).collect();
        let mut jobs = self.shown_jobs(&|account| account.user == user && !account.is_own);
        let mut own = self.shown_jobs(&|account| account.user == user && account.is_own);
        [&mut jobs, &mut own].into_iter().for_each(|rows| rows.truncate(OWN_ROWS_MAX));
        json!({ "version": self.rules.version, "rules": rules, "jobs": jobs, "own": own })
            .to_string()
    }

    fn shown_jobs(&self, is_shown: &dyn Fn(&JobAccount) -> bool) -> Vec<Value> {
        let total: u64 = self.accounts.values().map(|account| account.usage.device_nanos).sum();
        let shown = self.accounts.iter().filter(|(_, account)| is_shown(&account.facts));
        let jobs = shown.map(|(key, account)| {
            let (used, (bytes_here, operations_here)) = (account.usage, account.rates());
            let limit = |rate: u64| (rate > 0).then_some(rate);
            json!({
                "user": key.0,
                "job": account.facts.job,
                "rule": account.facts.rule,
                "waiting": account.waiting,
                "bytes_waiting": account.bytes_waiting,
                "requests": used.requests,
                "bytes": used.bytes,
                "bytes_local": account.bytes_local(),
                "wait_s": used.wait_nanos as f64 / 1e9,
                "wait_max_s": used.wait_nanos_max as f64 / 1e9,
                "throttled_s": account.throttled_nanos as f64 / 1e9,
                "share": used.device_nanos as f64 / total.max(1) as f64,
                "percent_of_share": account.share.percent(),
                "bytes_per_second_here": limit(bytes_here),
                "operations_per_second_here": limit(operations_here),
            })
        });
        jobs.collect()
    }
}

impl Dispatcher {
    /// Why rules cannot keep their minima, as far as this host has seen.
    fn minima_above_capacity(&self, rules: &RuleSet) -> Option<String> {
        let minima = rules.rules.all_rules().iter().map(|rule| rule.limits().bytes_per_second_min);
        let minima = minima.fold(0, u64::saturating_add);
        let ways = self.devices.iter().filter(|(way, _)| way.pool == 0);
        let most = ways.filter_map(|(_, device)| device.bytes_per_second()).max()?;
        // It may have been somewhat slower than it can be.
        (minima > most.saturating_add(most / 4)).then(|| {
            format!(
                "the minima of all rules are {minima} bytes per second, and this host moves at most \
                 {most} to another one: lower min="
            )
        })
    }

    /// As `minima_above_capacity`, if the command sets a minimum; with its column.
    pub(super) fn fault_of_minima(&self, rules: &RuleSet, command: &str) -> Option<String> {
        // Own rules of users have none.
        let front = command.get(..command.find("min=")?).filter(|it| !it.starts_with("by "))?;
        let why = self.minima_above_capacity(rules)?;
        Some(format!("column {}: {why}", front.chars().count() + 1))
    }

    /// For people: what is odd about the rules, and which jobs get too little.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.rules.warnings(None);
        warnings.extend(self.minima_above_capacity(&self.rules));
        for (key, account) in &self.accounts {
            let percent = account.share.percent().filter(|_| account.share.is_short());
            if let Some(percent) = percent {
                let job = printable(&account.facts.job);
                let user = key.0;
                warnings.push(format!(
                    "job \"{job}\" of user {user} got {percent} % of its share on this host in 5 s"
                ));
            }
        }
        warnings
    }
}
