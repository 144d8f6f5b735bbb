"""Keys, signatures and hashes: what lets a peer trust bytes without trusting their sender.

Depends on `cryptography`, `blake3` and `base58` and on no other package of this project. Nothing here
does input or output, except that `keystore` reads and writes the one file that holds the identity.
"""
