"""The shop's mail server, spoken to by Django's own e-mail backend."""

from __future__ import annotations

from smtplib import SMTPRecipientsRefused

import pytest
from django.core.mail import EmailMessage

from services.smtp import Mailbox


def send(message_id: str, to: str = "ella@mail.example") -> None:
    EmailMessage("Ünïcode", "Text", "shop@shop.example", [to], headers={"Message-ID": message_id}).send()


def test_a_mail_is_kept_under_its_message_id(mailbox: Mailbox) -> None:
    send("<invoice-1@shop.example>")

    assert mailbox.received() == 1
    assert mailbox.doubled() == 0


def test_a_mail_that_comes_twice_is_counted_twice_and_told_apart(mailbox: Mailbox) -> None:
    for message_id in ["<invoice-1@shop.example>", "<invoice-1@shop.example>", "<invoice-2@shop.example>"]:
        send(message_id)

    assert mailbox.received() == 3
    assert mailbox.doubled() == 1


def test_a_refused_recipient_is_told_so_until_accepted_again(mailbox: Mailbox) -> None:
    mailbox.refuse(["Ella@mail.example"])
    with pytest.raises(SMTPRecipientsRefused, match="550"):
        send("<invoice-1@shop.example>")
    send("<invoice-2@shop.example>", to="louis@mail.example")

    mailbox.accept_all()
    send("<invoice-1@shop.example>")

    assert mailbox.received() == 2
