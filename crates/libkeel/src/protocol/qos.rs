//! Quality of service: requests to the controller. The answer is an object from the node.

use serde::{Deserialize, Serialize};

/// Request: the state of quality of service, after the changes requested here.
///
/// The owner of the controller checks the numbers; absent fields change nothing.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Qos {
    /// The mode from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The target of mean tardiness: response time ÷ deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tardiness: Option<f64>,
    /// The target of data time ÷ response time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_ratio: Option<f64>,
    /// Starts an identification with these parameters, an object for the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identify: Option<serde_json::Map<String, serde_json::Value>>,
    /// Stops a running identification, without a result.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stop_identify: bool,
}

/// What the controller may change.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Nothing.
    Open,
    /// The processor's speed.
    DvfsOnly,
    /// The admitted fraction of updates.
    QodOnly,
    /// Both.
    Mimo,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}
