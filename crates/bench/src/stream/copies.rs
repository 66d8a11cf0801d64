//! Plain TCP for comparison: a copy of the same number of bytes, and an exchange with the bytes of a request and its
//! answer.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::bed::{Bed, Way};
use super::net::{at_server, inside};

/// Port of the sender.
const PORT: u16 = 7300;

/// Timeout of a copy or an exchange.
const PATIENCE: Duration = Duration::from_secs(120);

/// Size of one send or receive, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Number of uncounted exchanges before the counted ones.
const FIRST_EXCHANGES: u32 = 20;

/// Returns the milliseconds from the request for `bytes` bytes until the last one has arrived over the path, on an
/// existing connection.
///
/// # Errors
/// One line: they did not arrive.
pub(crate) fn copy(bed: &Bed<'_>, way: Way, bytes: u64) -> Result<f64, String> {
    joined(
        bed,
        way,
        move |stream| {
            stream.read_exact(&mut [0])?;
            send(stream, &mut vec![0x5a; CHUNK_BYTES], bytes)?;
            // Wait until the other side has received all bytes.
            let _ = stream.read(&mut [0]);
            Ok(())
        },
        |stream| {
            let mut chunk = vec![0; CHUNK_BYTES];
            let begun = Instant::now();
            stream.write_all(&[1])?;
            receive(stream, &mut chunk, bytes)?;
            Ok(begun.elapsed().as_secs_f64() * 1e3)
        },
    )
}

/// Returns the mean microseconds of sending and receiving these numbers of bytes, repeatedly over one connection.
///
/// # Errors
/// One line: they did not arrive.
pub(crate) fn exchange_us(
    bed: &Bed<'_>,
    way: Way,
    [there, back]: [u64; 2],
    count: u32,
) -> Result<f64, String> {
    let all = FIRST_EXCHANGES + count;
    joined(
        bed,
        way,
        move |stream| {
            let mut chunk = vec![0x5a; CHUNK_BYTES];
            for _ in 0..all {
                receive(stream, &mut chunk, there)?;
                send(stream, &mut chunk, back)?;
            }
            Ok(())
        },
        move |stream| {
            let mut chunk = vec![0x5a; CHUNK_BYTES];
            let mut begun = Instant::now();
            for number in 0..all {
                if number == FIRST_EXCHANGES {
                    begun = Instant::now();
                }
                send(stream, &mut chunk, there)?;
                receive(stream, &mut chunk, back)?;
            }
            Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(count.max(1)))
        },
    )
}

/// Runs both ends of a new connection, with the server's end on a thread.
fn joined(
    bed: &Bed<'_>,
    way: Way,
    at_sender: impl FnOnce(&mut TcpStream) -> std::io::Result<()> + Send + 'static,
    at_receiver: impl FnOnce(&mut TcpStream) -> std::io::Result<f64>,
) -> Result<f64, String> {
    let failed = |error: std::io::Error| format!("a copy by TCP: {error}");
    bed.line().limit(way.rate)?;
    let sender = inside(bed.line().server(), || TcpListener::bind(at_server(PORT)))?;
    let sender = sender.map_err(failed)?;
    let (_proxy, port) = bed.proxy(way, PORT)?;
    let sending = std::thread::spawn(move || {
        let (mut stream, _) = sender.accept()?;
        prepare(&stream)?;
        at_sender(&mut stream)
    });
    let connected = inside(bed.line().device(), || TcpStream::connect(at_server(port)))?;
    let mut stream = connected.map_err(failed)?;
    prepare(&stream).map_err(failed)?;
    // Wait until the connection is also established behind the proxy.
    std::thread::sleep(Duration::from_millis(50));
    let measured = at_receiver(&mut stream).map_err(failed);
    drop(stream);
    let sent = sending.join().map_err(|_| "the sender has ended early")?;
    let measured = measured?;
    sent.map_err(failed)?;
    Ok(measured)
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

fn send(stream: &mut TcpStream, chunk: &mut [u8], mut left: u64) -> std::io::Result<()> {
    while left > 0 {
        let part = left.min(chunk.len() as u64);
        stream.write_all(&chunk[..part as usize])?;
        left -= part;
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, chunk: &mut [u8], mut left: u64) -> std::io::Result<()> {
    while left > 0 {
        let room = left.min(chunk.len() as u64) as usize;
        match stream.read(&mut chunk[..room])? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => left -= read as u64,
        }
    }
    Ok(())
}
