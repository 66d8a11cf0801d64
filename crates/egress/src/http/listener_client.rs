//! A client of the tests of the listener: it asks and takes answers, over any stream.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub(super) async fn ask(stream: &mut (impl AsyncWrite + Unpin), path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    // A stream with TLS may hold it back.
    stream.flush().await.unwrap();
}

pub(super) async fn post(
    stream: &mut (impl AsyncWrite + Unpin),
    path: &str,
    headers: &str,
    body: &[u8],
) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    stream.flush().await.unwrap();
}

/// Returns the head of an answer; nothing if the connection has ended.
pub(super) async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return String::new(),
        }
    }
    String::from_utf8(head).unwrap()
}

/// Takes the body of an answer with this head. Returns whether all of it comes.
pub(super) async fn is_whole(stream: &mut (impl AsyncRead + Unpin), head: &str) -> bool {
    let length = head.split("content-length: ").nth(1).unwrap();
    let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.is_ok()
}
