//! Answers: JSON, and errors that name the object and the remedy.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base::error::Code;
use serde::Serialize;

pub(crate) const JSON: &str = "application/json";

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Refused {
    #[serde(skip)]
    pub(crate) status: StatusCode,
    /// A name from the table of error codes.
    pub(crate) code: &'static str,
    pub(crate) thing: String,
    pub(crate) wrong: String,
    pub(crate) remedy: String,
    #[serde(flatten)]
    pub(crate) text: Option<Box<Text>>,
    /// When to try again, where that helps.
    #[serde(skip)]
    pub(crate) retry_seconds: u16,
}

/// All of it in one text, which clients of InfluxDB show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Text {
    message: String,
    /// The same text, where clients of version 1 look for it.
    error: String,
}

impl Refused {
    pub(crate) fn new(code: Code, thing: &str, wrong: impl Into<String>, remedy: &str) -> Self {
        let status = StatusCode::from_u16(code.http_status());
        Self {
            status: status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            code: code.name(),
            thing: shorten(thing),
            wrong: wrong.into(),
            remedy: remedy.to_owned(),
            text: None,
            retry_seconds: 1,
        }
    }

    /// Sets a status that does not follow from the code.
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Sets when to try again.
    pub(crate) fn with_retry(mut self, seconds: u16) -> Self {
        self.retry_seconds = seconds;
        self
    }

    /// Adds the text that clients of InfluxDB show.
    pub(crate) fn with_message(mut self) -> Self {
        let message = format!("{} {}: {}", self.thing, self.wrong, self.remedy);
        let error = message.clone();
        self.text = Some(Box::new(Text { message, error }));
        self
    }
}

/// Returns the beginning of a client's text.
fn shorten(text: &str) -> String {
    const LETTERS_MAX: usize = 100;
    if text.chars().count() <= LETTERS_MAX {
        return text.to_owned();
    }
    text.chars().take(LETTERS_MAX).chain(['…']).collect()
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let bytes = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = typed(JSON, bytes);
        *response.status_mut() = self.status;
        match self.status {
            StatusCode::UNAUTHORIZED => {
                let value = HeaderValue::from_static("Bearer realm=\"keel\"");
                response
                    .headers_mut()
                    .insert(header::WWW_AUTHENTICATE, value);
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                let value = HeaderValue::from(self.retry_seconds);
                response.headers_mut().insert(header::RETRY_AFTER, value);
            }
            _ => {}
        }
        response
    }
}

/// Builds an answer of this type that must not be cached.
pub(crate) fn typed(content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Builds an answer in JSON.
pub(crate) fn json(value: &impl Serialize) -> Response {
    // Writing plain structures to memory cannot fail.
    typed(JSON, serde_json::to_vec(value).unwrap_or_default())
}
