//! The configuration of a running node, read again.

use super::key_form::KeyForm;
use super::sources::{Plan, Sources};
use super::state::Node;
use super::{confinement, log, settings};
use command::error::CliError;
use config::Config;
use std::path::Path;

/// Reads the configuration again. An invalid one changes nothing; keys that need a restart are named.
pub(crate) fn reload(path: &Path, node: &Node, sources: &mut Sources) {
    let refused = |error: CliError| {
        log::event("reload", format!("refused, nothing changes: {error}"));
        *node.reload_error.borrow_mut() = Some(error.to_string());
    };
    let new = match Config::load(path) {
        Ok(new) => new,
        Err(error) => return refused(error),
    };
    let mut changes = config::reload(&node.config.borrow(), &new);
    changes.keep_unlisted(&node.config.borrow(), confinement::permits);
    // What the listener could not use at the start may be right now.
    if node.figures.http_unusable.is_some() && changes.effective.http.is_some() {
        changes.needs("http");
    }
    if let Err(error) = changes.effective.refuse_conflicts() {
        return refused(error);
    }
    let plan = match Plan::of(&changes.effective) {
        Ok(plan) => plan.with_tags(node.key_form.tags),
        Err(error) => return refused(error),
    };
    if let Err(error) = node.key_form.check(&changes.effective) {
        return refused(error);
    }
    let rules = settings::key_rules(&changes.effective);
    let retention = changes.effective.retention(node.figures.capacity_bytes);
    node.db.set_retention(retention);
    // The rules apply even if single keys cannot be declared.
    let declared = node.target.inner().set_rules(rules).map(drop);
    let failures = node.target.inner().declare_failures();
    let declare_error = settings::declare_error(declared, failures);
    say_warnings(&changes.effective);
    say_form(node.key_form, &changes.effective);
    if let Some(error) = &declare_error {
        log::event("warning", error);
    }
    *node.declare_error.borrow_mut() = declare_error;
    sources.reload(plan);
    node.qos.reload(&changes.effective.qos);
    node.programs.reload(&changes.effective.task);
    *node.config.borrow_mut() = changes.effective;
    *node.reload_error.borrow_mut() = None;
    node.pending_restart
        .borrow_mut()
        .clone_from(&changes.needs_restart);
    log::event(
        "reload",
        format!(
            "applied: {}; needs a restart: {}",
            list(&changes.applied),
            list(&changes.needs_restart)
        ),
    );
}

/// Returns names as a list in a sentence.
fn list(names: &[&str]) -> String {
    if names.is_empty() {
        "nothing".to_owned()
    } else {
        names.join(", ")
    }
}

/// Logs settings of the configuration that are allowed but may surprise.
pub(crate) fn say_warnings(config: &Config) {
    for warning in config.warnings() {
        log::event("warning", warning);
    }
}

/// Logs what `{tags}` stands for if that is not so in new stores.
pub(crate) fn say_form(key_form: KeyForm, config: &Config) {
    if let Some(note) = key_form.note(config) {
        log::event("keys", note);
    }
}
